#!/usr/bin/env python3
"""make_fp8.py IN OUT [--decoded DIR]: a bf16 checkpoint folder as FP8 in blocks of 128 x 128, as the official FP8 files are.

Every matrix of the layers becomes F8_E4M3 with MODULE.weight_scale_inv (F32, the multiplier); embedding, head, norms and the rest
stay. DIR gets the same model with the decoded values in F32: the two must give the same answers. Standard library only."""
import json, math, os, shutil, struct, sys
from array import array

BLOCK = 128
VALUES = [(m / 8 * 2.0 ** -6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) for e in range(16) for m in range(8)][:127]
KEEP = ("embed_tokens", "lm_head", "norm", "conv1d", "visual", "A_log", "dt_bias", "gate.weight", "shared_expert_gate")


def f32(x): return struct.unpack("<f", struct.pack("<f", x))[0]


def encode(x):
    """The nearest E4M3 code, ties to the even one; beyond 448 saturated."""
    a, sign = abs(x), 128 if math.copysign(1, x) < 0 else 0
    if a >= 448: return sign | 126
    low, high = 0, 126
    while high - low > 1:
        mid = (low + high) // 2
        if VALUES[mid] <= a: low = mid
        else: high = mid
    below, above = a - VALUES[low], VALUES[high] - a
    return sign | (low if below < above or (below == above and low % 2 == 0) else high)


def decode(code): return -VALUES[code & 127] if code & 128 else VALUES[code]


def read_bf16(data):
    words = array("H", data)
    if sys.byteorder == "big": words.byteswap()
    return array("f", struct.pack(f"={len(words)}I", *(w << 16 for w in words)))


def quantize(values, rows, cols):
    """Codes row by row, the scales of the blocks, and what both stand for."""
    codes, decoded = bytearray(rows * cols), array("f", bytes(4 * rows * cols))
    scales = array("f")
    for r0 in range(0, rows, BLOCK):
        for c0 in range(0, cols, BLOCK):
            places = [r * cols + c for r in range(r0, min(r0 + BLOCK, rows)) for c in range(c0, min(c0 + BLOCK, cols))]
            scale = f32(max(abs(values[p]) for p in places) / 448) or 1.0
            scales.append(scale)
            for p in places:
                codes[p] = encode(values[p] / scale)
                decoded[p] = decode(codes[p]) * scale
    return bytes(codes), scales, decoded


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors): f.write(tensors[name][2])


def read(folder):
    tensors = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"): continue
        raw = open(os.path.join(folder, file), "rb").read()
        n = struct.unpack("<Q", raw[:8])[0]
        for name, t in json.loads(raw[8:8 + n]).items():
            if name == "__metadata__": continue
            begin, end = t["data_offsets"]
            tensors[name] = (t["dtype"], t["shape"], raw[8 + n + begin:8 + n + end])
    return tensors


def make_folder(folder, source, config):
    os.makedirs(folder, exist_ok=True)
    for file in os.listdir(source):
        if file.endswith((".json", ".jinja")) and "index" not in file and file != "config.json":
            shutil.copyfile(os.path.join(source, file), os.path.join(folder, file))
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=1)


def main(args):
    decoded_folder = args.pop(args.index("--decoded") + 1) if "--decoded" in args else None
    source, out = [a for a in args if a != "--decoded"]
    config = json.load(open(os.path.join(source, "config.json")))
    packed, plain, n = {}, {}, 0
    for name, (dtype, shape, data) in read(source).items():
        packed[name] = plain[name] = (dtype, shape, data)
        if dtype != "BF16" or len(shape) != 2 or any(part in name for part in KEEP): continue
        codes, scales, decoded = quantize(read_bf16(data), *shape)
        packed[name] = ("F8_E4M3", shape, codes)
        packed[name.replace(".weight", ".weight_scale_inv")] = ("F32", [-(-d // BLOCK) for d in shape], scales.tobytes())
        plain[name] = ("F32", shape, decoded.tobytes())
        n += 1
    if not n: sys.exit(f"{source}: no BF16 matrix to quantize")
    if decoded_folder:
        make_folder(decoded_folder, source, config)
        write(os.path.join(decoded_folder, "model.safetensors"), plain)
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    make_folder(out, source, config)
    write(os.path.join(out, "model.safetensors"), packed)
    print(f"{out}: {n} matrices in FP8")


if __name__ == "__main__": main(sys.argv[1:])

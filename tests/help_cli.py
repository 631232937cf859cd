"""What the tests of the command share: running it, safetensors files, and a runner whose test names are sentences.
Standard library only."""
import array, json, os, shutil, struct, subprocess, sys, tempfile, traceback

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WEFT = os.environ.get("WEFT", os.path.join(ROOT, "build", "weft"))
TINY = os.path.join(ROOT, "models", "tiny")
SHARED = os.path.join(ROOT, "..", "shared")
TEMP = tempfile.mkdtemp(prefix="weft-test-")

_tests = []


def test(function):
    _tests.append(function)
    return function


class Skip(Exception):
    pass


def shared(path):
    """A path among the goldens beside the repository; skips the test when they are not there."""
    full = os.path.join(SHARED, path)
    if not os.path.exists(full): raise Skip(path)
    return full


def main():
    wanted, failed, skipped = sys.argv[1:], 0, 0
    try:
        for f in _tests:
            if wanted and not any(w in f.__name__ for w in wanted): continue
            try:
                f()
                print("ok     ", f.__name__, flush=True)
            except Skip as e:
                skipped += 1
                print("skipped", f.__name__, f"({e})", flush=True)
            except Exception:
                failed += 1
                print("FAILED ", f.__name__, flush=True)
                traceback.print_exc()
    finally:
        shutil.rmtree(TEMP, ignore_errors=True)
    print(f"{len(_tests)} tests, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


def temp(name):
    return os.path.join(TEMP, name)


def write(name, text):
    path = temp(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if isinstance(text, bytes) else "w") as f: f.write(text)
    return path


def weft(*args, input=None, timeout=300, env=None):
    """The finished process; output as bytes."""
    return subprocess.run([WEFT, *map(str, args)], input=input, capture_output=True, timeout=timeout,
                          env=dict(os.environ, **env) if env else None)


def good(*args, **kw):
    """Standard output, of a command that must succeed."""
    p = weft(*args, **kw)
    assert p.returncode == 0, f"{args}: exit {p.returncode}: {p.stderr.decode(errors='replace')}"
    return p.stdout


def good_json(*args, **kw):
    return json.loads(good(*args, **kw))


def bad(*args, says=(), **kw):
    """The one sentence of a command that must fail with exit code 1 and name what is wrong."""
    p = weft(*args, **kw)
    said = p.stderr.decode(errors="replace")
    assert p.returncode == 1, f"{args}: exit {p.returncode}, not 1; it said {said!r}"
    lines = [x for x in said.splitlines() if not x.startswith("weft: warning:")]
    assert len(lines) == 1 and lines[0].startswith("weft: ") and len(lines[0]) > 12, f"{args}: not one sentence: {said!r}"
    for word in [says] if isinstance(says, str) else says:
        assert word.lower() in said.lower(), f"{args}: {word!r} is not in {said!r}"
    return said


def equal(a, b, what=""):
    assert a == b, f"{what} {str(a)[:300]} is not {str(b)[:300]}"


# ---- safetensors ----

WIDTH = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "U8": 1, "I8": 1, "I64": 8, "U16": 2}


def read_safetensors(path):
    """name: (dtype, shape, bytes)"""
    with open(path, "rb") as f: data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__": continue
        begin, end = t["data_offsets"]
        out[name] = (t["dtype"], t["shape"], data[8 + n + begin:8 + n + end])
    return out


def write_safetensors(path, tensors):
    """tensors as read_safetensors gives them."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values(): f.write(data)
    return path


def floats(tensor):
    """The values of an F32, F16 or I32 tensor as an array."""
    dtype, _, data = tensor
    if dtype == "F32": return array.array("f", data)
    if dtype == "I32": return array.array("i", data)
    if dtype == "F16": return array.array("f", struct.unpack(f"<{len(data) // 2}e", data))
    raise ValueError(dtype)


def relative_error(x, reference):
    """||x - ref|| / ||ref||"""
    d = sum((a - b) * (a - b) for a, b in zip(x, reference))
    n = sum(b * b for b in reference)
    return (d / n) ** 0.5


def copy_tiny(name, **files):
    """A copy of the bundled model whose files may be replaced: links, so that it costs nothing."""
    folder = temp(name)
    os.makedirs(folder)
    for f in os.listdir(TINY):
        os.symlink(os.path.join(TINY, f), os.path.join(folder, f))
    for f, content in files.items():
        f = f.replace("__", ".")
        path = os.path.join(folder, f)
        if os.path.lexists(path): os.unlink(path)
        if content is None: continue
        with open(path, "wb") as g: g.write(content if isinstance(content, bytes) else content.encode())
    return folder

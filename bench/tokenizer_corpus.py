#!/usr/bin/env python3
"""Writes the corpus of bench_tokenizer: tokenizer_corpus.py OUT. 20 MB of documents with a zero byte between them: 8 MB of manuals
and prose from /usr/share/doc, 5.4 MB of Python, 6.6 MB of lines in many scripts, seven words in ten made of random letters."""
import glob, gzip, os, random, sys, unicodedata

BLOCKS = """0041-024F 0370-03FF 0400-04FF 0531-0587 05D0-05EA 0620-064A 0710-074A 0780-07B1 07CA-07EA 0904-0939 0985-09B9 0A05-0A39
0A85-0AB9 0B05-0B39 0B83-0BB9 0C05-0C39 0C85-0CB9 0D05-0D39 0D85-0DC6 0E01-0E3A 0E81-0EB0 0F40-0F6C 1000-102A 10A0-10FF 1200-135A
13A0-13F4 1401-166C 1681-169A 16A0-16EA 1780-17B3 1820-1878 1950-1974 1980-19AB 1A00-1A16 1B05-1B4B 1C00-1C4F 1E00-1EFF 1F00-1FFF
2C00-2C7F 2C80-2CFF 2D30-2D67 3041-3096 30A1-30FA 3105-312F 4E00-9FFF A000-A48C A500-A62B A840-A877 AC00-D7A3 10330-1034A
10400-1044F 12000-123FF"""
COMMON = "the of and 2024 - ( ) , . de la 的 是 в и на не que y el der die und 1,234 %".split()
PIECE = 4000


def read_text(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f: return f.read().decode("utf8")


def from_files(documents, pattern, limit):
    paths = [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)]
    random.shuffle(paths)
    taken = 0
    for path in paths:
        if taken >= limit: return
        try: text = read_text(path)[:60000]
        except (OSError, UnicodeDecodeError): continue
        if "\0" in text or len(text) < 200: continue
        documents += [text[i:i + PIECE] for i in range(0, len(text), PIECE)]
        taken += len(text.encode("utf8"))


def letters_and_marks(block):
    first, last = (int(x, 16) for x in block.split("-"))
    of = lambda begin, end, kinds: [chr(c) for c in range(begin, end) if unicodedata.category(chr(c))[0] in kinds]
    return of(first, last + 1, "LM"), of(first & ~0x7F, (first & ~0x7F) + 0x80, "M")


def random_word(letters, marks):
    word = ""
    for _ in range(random.randint(2, 8)):
        word += random.choice(letters)
        if marks and random.random() < .25: word += random.choice(marks)
    return word


def random_line(scripts):
    letters, marks = random.choice(scripts)
    letters = random.sample(letters, min(len(letters), 60))
    words = [random_word(letters, marks) if random.random() < .7 else random.choice(COMMON) for _ in range(random.randint(6, 16))]
    line = " ".join(words) + random.choice([".", "!", ";", "。"]) + "\n"
    return unicodedata.normalize("NFC", line) if random.random() < .9 else line


def from_scripts(documents, limit):
    scripts = [letters_and_marks(b) for b in BLOCKS.split()]
    taken = 0
    while taken < limit:
        text = ""
        while len(text.encode("utf8")) < PIECE: text += random_line(scripts)
        documents.append(text)
        taken += len(text.encode("utf8"))


if __name__ == "__main__":
    if len(sys.argv) != 2: sys.exit(__doc__)
    random.seed(7)
    made = []
    from_files(made, "/usr/share/doc/**/*", 8.0e6)
    from_files(made, "/usr/lib/python3*/**/*.py", 5.4e6)
    from_scripts(made, 6.6e6)
    random.shuffle(made)
    with open(sys.argv[1], "wb") as out: out.write(b"\0".join(d.encode("utf8") for d in made))
    print(f"{len(made)} documents, {sum(len(d.encode('utf8')) for d in made)} bytes")

#!/usr/bin/env python3
"""Restores a godwit snapshot from an OCI layout directory.

    reader.py LAYOUT DIGEST OUT

Written from docs/dev/protocols/snapshot-format.md. Writes one file per address space, "state", and
"disk-ID" per read-only disk into the directory OUT. Needs the zstd command.
"""
import hashlib
import json
import os
import struct
import subprocess
import sys

PAGE = 4096


def fail(text):
    sys.exit("reader: " + text)


def unzstd(data):
    return subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, check=True).stdout


class Elements:
    """The encoded bytes of an S2 or MinLZ block, and what has been decoded of them."""

    def __init__(self, name, data):
        self.name, self.data, self.at, self.out = name, data, 0, bytearray()

    def more(self):
        return self.at < len(self.data)

    def take(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, n):
        return int.from_bytes(self.take(n), "little")

    def varint(self):
        value = shift = 0
        while True:
            b = self.number(1)
            value |= (b & 0x7F) << shift
            shift += 7
            if b < 0x80:
                return value

    def literals(self, n):
        self.out += self.take(n)

    def copy(self, offset, length):
        if not 0 < offset <= len(self.out):
            fail("%s: offset %d at %d" % (self.name, offset, len(self.out)))
        for _ in range(length):
            self.out.append(self.out[-offset])

    def all(self, size):
        if len(self.out) != size:
            fail("%s: %d bytes of %d" % (self.name, len(self.out), size))
        return bytes(self.out)


def s2(data):
    e = Elements("S2", data)
    size = e.varint()
    offset = 0
    while e.more():
        t = e.number(1)
        kind, n = t & 3, t >> 2
        if kind == 0:
            e.literals((e.number(n - 59) if n >= 60 else n) + 1)
            continue
        if kind == 1:
            n &= 7
            where = (t >> 5) << 8 | e.number(1)
            if where:
                offset, length = where, n + 4
            elif n < 5:
                length = n + 4
            else:
                length = {5: 8, 6: 260, 7: 65540}[n] + e.number(n - 4)
        else:
            length, offset = n + 1, e.number(2 if kind == 2 else 4)
        e.copy(offset, length)
    return e.all(size)


def minlz(data):
    if data[0] != 0:
        fail("MinLZ: it begins with %d" % data[0])
    e = Elements("MinLZ", data[1:])
    size = e.varint()
    offset = 1

    def longer(n):
        return n + 4 if n < 61 else 64 + e.number(n - 60)

    while e.more():
        t = e.number(1)
        kind = t & 3
        before = 0
        if kind == 0:
            n = t >> 3
            length = n + 1 if n < 29 else 30 + e.number(n - 28)
            if not t & 4:
                e.literals(length)
                continue
        elif kind == 1:
            offset = (t >> 6 | e.number(1) << 2) + 1
            n = t >> 2 & 15
            length = n + 4 if n < 15 else 18 + e.number(1)
        elif kind == 2:
            offset = e.number(2) + 64
            length = longer(t >> 2)
        elif t & 4:
            t |= e.number(3) << 8
            offset = (t >> 11) + 65536
            before = t >> 3 & 3
            length = longer(t >> 5 & 63)
        else:
            offset = e.number(2) + 64
            before = (t >> 3 & 3) + 1
            length = (t >> 5) + 4
        e.literals(before)
        e.copy(offset, length)
    return e.all(size)


IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTE = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
            (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
START, END, PARENT, ROOT = 1, 2, 4, 8


def compress(cv, m, counter, size, flags):
    v = list(cv) + list(IV[:4]) + [counter & 0xFFFFFFFF, counter >> 32, size, flags]
    for r in range(7):
        for i, (a, b, c, d) in enumerate(QUARTERS):
            for x, turn in ((m[2 * i], (16, 12)), (m[2 * i + 1], (8, 7))):
                v[a] = (v[a] + v[b] + x) & 0xFFFFFFFF
                y = v[d] ^ v[a]
                v[d] = (y >> turn[0] | y << (32 - turn[0])) & 0xFFFFFFFF
                v[c] = (v[c] + v[d]) & 0xFFFFFFFF
                y = v[b] ^ v[c]
                v[b] = (y >> turn[1] | y << (32 - turn[1])) & 0xFFFFFFFF
        m = [m[i] for i in PERMUTE]
    return tuple(v[i] ^ v[i + 8] for i in range(8))


def chunk(data, counter, root):
    cv = IV
    last = max(0, (len(data) - 1) // 64)
    for i in range(last + 1):
        block = data[64 * i:64 * i + 64]
        flags = (START if i == 0 else 0) | (END | root if i == last else 0)
        cv = compress(cv, struct.unpack("<16I", block.ljust(64, b"\0")), counter, len(block), flags)
    return cv


def tree(data, counter, root):
    if len(data) <= 1024:
        return chunk(data, counter, root)
    left = 1024
    while left * 2 < len(data):
        left *= 2
    both = tree(data[:left], counter, 0) + tree(data[left:], counter + left // 1024, 0)
    return compress(IV, both, 0, 64, PARENT | root)


def blake3(data):
    return struct.pack("<8I", *tree(data, 0, ROOT))


def read_blob(layout, digest):
    algorithm, _, name = digest.partition(":")
    if algorithm != "sha256" or len(name) != 64 or not all(c in "0123456789abcdef" for c in name):
        fail("digest " + digest)
    with open(os.path.join(layout, "blobs", algorithm, name), "rb") as f:
        data = f.read()
    if hashlib.sha256(data).hexdigest() != name:
        fail("blob " + digest + " has another digest")
    return data


def read_index(blob):
    raw = unzstd(blob)
    magic, version, shift, spaces, packs, frames, runs, zero = struct.unpack_from("<8sHHIIIII", raw)
    if (magic, version, shift, zero) != (b"GODWITIX", 1, 12, 0):
        fail("no index of version 1")
    at = 32
    if len(raw) != at + 32 * spaces + 40 * packs + 48 * frames + 16 * runs:
        fail("index has another length")

    def table(n, form):
        nonlocal at
        rows = [struct.unpack_from(form, raw, at + i * struct.calcsize(form)) for i in range(n)]
        at += n * struct.calcsize(form)
        return rows

    return (table(spaces, "<16sQII"), table(packs, "<32sQ"), table(frames, "<IIIBBH32s"), table(runs, "<QIBBH"))


def decode(frame, pack):
    _, offset, stored, pages, codec, _, want = frame
    data = pack[offset:offset + stored]
    if blake3(data) != want:
        fail("frame at %d has another hash" % offset)
    raw = {0: lambda d: d, 1: unzstd, 2: s2, 3: minlz}[codec](data)
    if len(raw) != pages * PAGE:
        fail("frame at %d: %d bytes" % (offset, len(raw)))
    return raw


def main(layout, digest, out):
    manifest = json.loads(read_blob(layout, digest))
    if manifest["artifactType"] != "application/vnd.godwit.snapshot.v1":
        fail("no snapshot of version 1")
    config = json.loads(read_blob(layout, manifest["config"]["digest"]))
    layers = manifest["layers"]
    with open(os.path.join(out, "state"), "wb") as f:
        f.write(read_blob(layout, layers[0]["digest"]))
    disks = [l for l in layers if l["mediaType"] == "application/vnd.godwit.disk.v1"]
    for disk, layer in zip(config.get("disks", []), disks):
        with open(os.path.join(out, "disk-" + os.path.basename(disk["id"])), "wb") as f:
            f.write(read_blob(layout, layer["digest"]))
    spaces, packs, frames, runs = read_index(read_blob(layout, layers[1]["digest"]))
    bodies = [read_blob(layout, "sha256:" + p[0].hex()) for p in packs]
    decoded = {}
    for name, size, first, count in spaces:
        name = name.rstrip(b"\0").decode()
        with open(os.path.join(out, os.path.basename(name)), "wb") as f:
            f.truncate(size)
            for page, frame, slot, n, _ in runs[first:first + count]:
                if frame not in decoded:
                    decoded[frame] = decode(frames[frame], bodies[frames[frame][0]])
                data = decoded[frame][slot * PAGE:(slot + n) * PAGE]
                f.seek(page * PAGE)
                f.write(data[:size - page * PAGE])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""Files that are either whole or absent: one atomic write each, and no pickle.

A checkpoint is a single safetensors file: the tensors, and beside them in its header one JSON
object and a digest of both. Whatever moment the process dies at, the last whole one is there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, no mixture."""
    temporary = path.with_name(path.name + ".tmp")  # same folder: os.replace cannot cross disks
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    """Return the SHA-256 of named tensors (values, dtypes, shapes) and texts, in hex."""
    sha = hashlib.sha256()
    for text in texts:
        sha.update(f"{len(text)} {text}".encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        sha.update(flat.view(torch.uint8).numpy().data)
    return sha.hexdigest()


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-able `state` to one file, atomically."""
    # A clone each: safetensors refuses tensors that share memory.
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps(state)
    header = {"state": text, "digest": digest(copies, text)}
    write_atomically(path, safetensors.torch.save(copies, header))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `save_checkpoint` wrote.

    Raises ValueError, in one line that names the file, if a single bit of it has changed or it is
    no checkpoint at all; OSError if it cannot be read.
    """
    content = path.read_bytes()  # once: a file replaced between two reads would be a mixture
    try:
        tensors = safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged or no checkpoint: {error}; remove it") from None
    # The format: the header's length in 8 bytes, the header in JSON, the tensors.
    header_end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:header_end]).get("__metadata__", {})
    text = header.get("state", "")
    if header.get("digest") != digest(tensors, text):
        raise ValueError(f"{path} is damaged: its content does not match its digest; remove it")
    return tensors, json.loads(text)

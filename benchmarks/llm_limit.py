"""How long `limit` takes for language models of 8 and 70 billion weights without a GPU, and in how much host memory.

    python benchmarks/llm_limit.py --save benchmarks/results/two-cores/llm-limit.json

Models of transformers from their config, in bf16 with gradient checkpointing; if peft is installed, with LoRA too.
Nothing is downloaded. Each answer comes from a process of its own, as on the command line; its time includes importing
torch and transformers.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

SIZES: dict[str, dict[str, int]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
MEMORY = {"8B": "80GiB", "70B": "1024GiB"}
LORA_MEMORY = {"8B": "24GiB", "70B": "192GiB"}
TOKENS = 1024
SAMPLE_S = 0.05


class Texts:
    """Texts of one length, as a causal language model takes them."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        tokens = torch.arange(TOKENS) % 1000
        return {"input_ids": tokens, "labels": tokens}


def make(size: str, lora: bool) -> Any:
    """The model: bf16, gradient checkpointing, and low-rank adapters in attention if asked for."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_config: Any = LlamaConfig
    config = make_config(vocab_size=128256, num_key_value_heads=8, use_cache=False, **SIZES[size])
    model: Any = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if not lora:
        return model
    from peft import LoraConfig, get_peft_model

    model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def workload() -> Any:
    """The workload that the environment names, for `stoker limit benchmarks/llm_limit.py`."""
    import functools

    import torch

    import stoker

    size, lora = os.environ["LLM_SIZE"], os.environ.get("LLM_LORA") == "1"
    return stoker.Workload(model=functools.partial(make, size, lora), dataset=Texts(), optimizer=torch.optim.AdamW)


class PeakMemory(threading.Thread):
    """The largest memory of a process and its children: pages shared between them count once."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.process, self.peak_bytes, self.over = process, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(SAMPLE_S):
            total = 0
            try:
                family = [self.process, *self.process.children(recursive=True)]
            except psutil.Error:
                continue
            for each in family:
                try:
                    total += each.memory_full_info().pss
                except psutil.Error:  # it ended meanwhile
                    continue
            self.peak_bytes = max(self.peak_bytes, total)


def measure(size: str, *, lora: bool) -> dict[str, Any]:
    """One answer of `stoker limit`, with its wall time and peak of host memory."""
    memory = (LORA_MEMORY if lora else MEMORY)[size]
    environment = {**os.environ, "LLM_SIZE": size, "LLM_LORA": str(int(lora))}
    command = [sys.executable, "-m", "stoker", "limit", f"{__file__}:workload", "--method", "trace"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--gpu-memory", memory, "--json", "-q"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        watch = PeakMemory(psutil.Process(process.pid))
        watch.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - began
        watch.over.set()
    if process.returncode:
        raise SystemExit(f"{size}{' with LoRA' if lora else ''}: stoker limit ended with {process.returncode}")
    found = json.loads(output)
    return {
        "model": f"Llama {size}" + (" with LoRA" if lora else ""),
        "gpu_memory": memory,
        "seconds": round(seconds, 2),
        "import_s": round(import_seconds(), 2),
        "peak_host_gib": round(watch.peak_bytes / 2**30, 2),
        "max_batch": found["max_batch"],
        "fixed_gib": round(found["fixed_bytes"] / 2**30, 2),
        "item_gib": round(found["bytes_per_item"] / 2**30, 3),
    }


def import_seconds() -> float:
    """What importing torch and the model takes in a fresh process here, of which no answer is spared."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "from transformers import LlamaForCausalLM"], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    asked = parser.parse_args()
    adapted = [False, True] if importlib.util.find_spec("peft") else [False]
    rows = []
    for size in asked.sizes:
        for lora in adapted:
            rows.append(measure(size, lora=lora))
            print(rows[-1], flush=True)
    if asked.save:
        document = {"tokens": TOKENS, "cpus": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}
        asked.save.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

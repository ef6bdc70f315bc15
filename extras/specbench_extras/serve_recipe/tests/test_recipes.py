"""The command lines that start engines: every flag that a method is made of, and none of another method."""

import json
import shlex

import pytest
from screens import output, refusal

from specbench.config import SUITES

WEIGHTS = SUITES / "pairs" / "weights"


def words(*arguments):
    """The words of the printed command as a shell reads them, and the comments."""
    text = output("serve-recipe", *arguments)
    return shlex.split(text, comments=True), [line for line in text.splitlines() if line.startswith("#")]


def pairs(result):
    """The options with their values; None for those without one."""
    after = dict(zip(result, [*result[1:], None], strict=True))
    return {key: value if value and not value.startswith("--") else None for key, value in after.items()}


def test_vllm():
    """The words are those with which vLLM 0.32 was run (results/reference/servers-vllm.json)."""
    result, notes = words("vllm", "--method", "sps", "--set", "sps.gamma=5")
    assert result[:3] == ["vllm", "serve", str(WEIGHTS / "target")]
    options = pairs(result)
    assert json.loads(options["--speculative-config"]) == {
        "method": "draft_model", "model": str(WEIGHTS / "draft"), "num_speculative_tokens": 5,
    }  # fmt: skip
    assert options["--per-request-spec-decode-metrics"] == "detailed" and "--enable-per-request-metrics" in options
    assert "--no-enable-prefix-caching" in options and options["--generation-config"] == "vllm"
    assert (options["--dtype"], options["--served-model-name"]) == ("float32", "pocket")
    then = "specbench audit --server http://127.0.0.1:8000 --pair pocket --method sps --set sps.gamma=5"
    assert notes == [f"# then: {then}"]

    lookup = pairs(words("vllm", "--method", "pld-vllm")[0])
    assert json.loads(lookup["--speculative-config"]) == {
        "method": "ngram", "num_speculative_tokens": 20, "prompt_lookup_max": 7, "prompt_lookup_min": 3,
    }  # fmt: skip
    assert any("pld-vllm with these lengths" in note for note in words("vllm", "--method", "pld")[1])
    head = pairs(words("vllm", "--method", "eagle3", "--set", "eagle3.head=owner/head", "--set", "eagle3.depth=4")[0])
    assert json.loads(head["--speculative-config"]) == {
        "method": "eagle3", "model": "owner/head", "num_speculative_tokens": 5,
    }  # fmt: skip
    assert not {"--speculative-config", "--enable-per-request-metrics"} & set(words("vllm")[0])


def test_the_audit_of_a_head_reads_a_file_of_our_own(tmp_path):
    """The engine reads the released folder; here the head that is imported from it drafts the chain that vLLM does."""
    (tmp_path / "head").mkdir()
    folder = tmp_path / "head"
    _, notes = words("vllm", "--method", "eagle3", "--set", f"eagle3.head={folder}", "--set", "eagle3.depth=4")
    assert notes[-2:] == [
        f"# then: specbench import eagle3-head {folder} --pair pocket",
        "# then: specbench audit --server http://127.0.0.1:8000 --pair pocket --method eagle3-chain"
        " --set eagle3-chain.depth=4 --set eagle3-chain.head=eagle3-head.safetensors",
    ]
    tree = words("sglang", "--method", "eagle3", "--set", "eagle3.head=owner/head")[1][-1]
    assert tree.endswith("--method eagle3 --set eagle3.head=eagle3-head.safetensors")


def test_sglang():
    result, notes = words("sglang", "--pair", "qwen3-32b-4b", "--method", "sps", "--set", "sps.gamma=5")
    options = pairs(result)
    assert result[:3] == ["python", "-m", "sglang.launch_server"] and options["--model-path"] == "Qwen/Qwen3-32B"
    assert len(options["--revision"]) == len(options["--speculative-draft-model-revision"]) == 40
    assert "--disable-radix-cache" in options and options["--sampling-defaults"] == "openai"
    facts = {key: value for key, value in options.items() if key.startswith("--speculative-") and "revision" not in key}
    assert facts == {
        "--speculative-algorithm": "STANDALONE", "--speculative-draft-model-path": "Qwen/Qwen3-4B",
        "--speculative-num-steps": "5", "--speculative-eagle-topk": "1", "--speculative-num-draft-tokens": "6",
    }  # fmt: skip
    assert any("never ran" in note for note in notes)
    tree = pairs(words("sglang", "--method", "eagle3", "--set", "eagle3.head=owner/head")[0])
    assert [tree[f"--speculative-{key}"] for key in ("num-steps", "eagle-topk", "num-draft-tokens")] == [
        "8",
        "10",
        "60",
    ]
    chain = ("--method", "eagle3-chain", "--set", "eagle3-chain.head=owner/head")
    assert pairs(words("sglang", *chain)[0])["--speculative-num-draft-tokens"] == "9"
    assert pairs(words("sglang", "--method", "pld")[0])["--speculative-algorithm"] == "NGRAM"
    assert not any(word.startswith("--speculative") for word in words("sglang")[0])


def test_llamacpp():
    result, notes = words("llamacpp", "--method", "sps", "--set", "sps.gamma=5")
    options = pairs(result)
    assert result[:3] == ["llama-server", "--model", "target.gguf"]
    assert (options["--spec-type"], options["--spec-draft-model"]) == ("draft-simple", "draft.gguf")
    assert (options["--spec-draft-n-max"], options["--spec-draft-p-min"]) == ("5", "0")
    assert sum("convert_hf_to_gguf.py" in note for note in notes) == 2
    lookup = pairs(words("llamacpp", "--method", "pld-vllm")[0])
    assert (lookup["--spec-ngram-simple-size-n"], lookup["--spec-ngram-simple-size-m"]) == ("7", "20")
    assert "--spec-type" not in words("llamacpp")[0]


WRONG = [
    (["--method", "csd"], "engines have vanilla, sps, pld, eagle3"),
    (["--method", "eagle3"], "--set eagle3.head=FOLDER_OR_NAME"),
    (["--method", "sps", "--set", "csd.gamma=5"], "the method is sps"),
    (["--method", "sps", "--target", "some/model"], "has no draft"),
]


@pytest.mark.parametrize(("arguments", "why"), WRONG)
def test_what_an_engine_cannot_do(arguments, why):
    assert why in " ".join(refusal("serve-recipe", "vllm", *arguments).split())

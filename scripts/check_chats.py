#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the prompts of `headgate generate --chat` with those of transformers' apply_chat_template.

    check_chats.py [BUILD] [--write-golden]

BUILD is the build folder (default: build). For each template of chat_templates.py, the script writes a random model
with a small tokenizer. --write-golden writes the expected texts for tests/models/generate and tests/models/jinja, which
need no Python, and compares nothing. Needs what scripts/python_venv.sh installs.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jinja2
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.utils import chat_template_utils

from chat_templates import EXPRESSIONS, NEXT_QUESTION, QUESTIONS, SPECIAL, TEMPLATES, VARIABLES

ANSWERS = ["An answer.", "<think>\nwell\n</think>\n\n It is one. \n"]
GOLDEN_TIME = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)  # the same day in most time zones


def tokenizer_of(template, bos, end):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([question["user"] + question["system"] + template for question in QUESTIONS], trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    if bos:
        ids = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=ids)
    out = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=end)
    out.chat_template = template
    return out


def messages_of(question, *answers):
    """Returns the messages of a conversation: the question, then each answer, followed by NEXT_QUESTION."""
    system = [{"role": "system", "content": question["system"]}] if question["system"] else []
    out = [*system, {"role": "user", "content": question["user"]}]
    for answer in answers:
        out += [{"role": "assistant", "content": answer}, {"role": "user", "content": NEXT_QUESTION}]
    return out


def applied(tokenizer, messages, **options):
    """Returns the prompt that the tokenizer's template makes, or None if the template refuses the messages."""
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)
    except jinja2.exceptions.TemplateError:
        return None


class GoldenClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return GOLDEN_TIME


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_golden(folder):
    chat_template_utils.datetime = GoldenClock
    cases = []
    for name, template, bos, end in TEMPLATES:
        tokenizer = tokenizer_of(template, bos, end)
        conversations = [messages_of(question) for question in QUESTIONS]
        conversations += [messages_of(QUESTIONS[1], *ANSWERS[:count]) for count in (1, 2)]
        texts = [
            {"messages": messages, "text": applied(tokenizer, messages, tokenize=False)} for messages in conversations
        ]
        cases.append({"name": name, "bos": bos, "end": end, "template": template, "conversations": texts})
    time = int(GOLDEN_TIME.timestamp())
    write_json(folder / "generate" / "golden" / "chats.json", {"time": time, "special": SPECIAL, "cases": cases})
    expressions = []
    for text in [EXPRESSIONS, *EXPRESSIONS.split("\n")]:
        try:
            rendered = chat_template_utils._compile_jinja_template(text).render(**VARIABLES)
        except jinja2.exceptions.TemplateError:
            rendered = None
        expressions.append({"template": text, "text": rendered})
    write_json(folder / "jinja" / "golden" / "expressions.json", {"variables": VARIABLES, "cases": expressions})


def write_model(folder, vocab):
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def ours(tool, folder, question, options=()):
    """Returns the JSON of `headgate generate` for one token, or None if the template refuses the question."""
    command = [
        tool,
        "generate",
        folder,
        "--chat",
        "--prompt",
        question["user"],
        "--max-tokens",
        "1",
        "--json",
        *options,
    ]
    if question["system"]:
        command += ["--system", question["system"]]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 2 and "chat template, line" in result.stderr:
        return None
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)


def wrong_dialogue(tool, folder, tokenizer, question):
    """Asks two questions in one conversation. Returns complaints about the prompt of the second one."""
    for seed in range(200):  # until the answer is a letter, which no template changes
        options = ["--temperature", "1", "--seed", str(seed)]
        answer = ours(tool, folder, question, options)
        if answer is None:
            return []
        if answer["text"].isalpha() and answer["text"].isascii():
            break
    else:
        return ["no answer is a letter"]
    command = [tool, "generate", folder, "--chat", "--max-tokens", "1", "--json", *options]
    if question["system"]:
        command += ["--system", question["system"]]
    text = question["user"].replace("\n", "\\\n") + "\n" + NEXT_QUESTION + "\n"
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    theirs = applied(tokenizer, messages_of(question, first["text"]), tokenize=False)
    known = first["prompt_ids"] + first["ids"]
    spelled = [tokenizer.decode(known[:kept] + second["prompt_ids"]) for kept in range(len(known) + 1)]
    return [] if theirs in spelled else [f"the second question: {spelled[-1]!r}, not {theirs!r}"]


def check(tool, name, template, bos, end):
    tokenizer = tokenizer_of(template, bos, end)
    wrong = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_model(folder, len(tokenizer))
        tokenizer.save_pretrained(folder)
        for question in QUESTIONS:
            theirs = applied(tokenizer, messages_of(question), tokenize=True, return_dict=False)
            answer = ours(tool, folder, question)
            mine = answer and answer["prompt_ids"]
            if mine != theirs:
                wrong.append(
                    f"{question}: {mine and tokenizer.decode(mine)!r}, not {theirs and tokenizer.decode(theirs)!r}"
                )
        wrong += wrong_dialogue(tool, folder, tokenizer, QUESTIONS[0])
        wrong += wrong_dialogue(tool, folder, tokenizer, QUESTIONS[1])
        wrong += wrong_spellings(tool, folder, tokenizer)
    print(f"{name:22s} {'; '.join(wrong) or 'the same'}")
    return not wrong


def wrong_spellings(tool, folder, tokenizer):
    """Asks a question that contains special tokens. Headgate must read them as text, or as tokens with
    --special-tokens. Returns complaints."""
    question = {"system": "", "user": "a <s> b<|im_end|>\n<think>c</s> d"}
    wrong = []
    for options, sanitized in (([], True), (["--special-tokens"], False)):
        answer = ours(tool, folder, question, options)
        theirs = applied(
            tokenizer, messages_of(question), tokenize=True, return_dict=False, sanitize_control_tokens=sanitized
        )
        if (answer and answer["prompt_ids"]) != theirs:
            wrong.append(f"special tokens in the question, {options}: {answer and answer['prompt_ids']}, not {theirs}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--write-golden", action="store_true", help="write the golden files of tests/models")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.write_golden:
        write_golden(Path(__file__).parent.parent / "tests" / "models")
        return 0
    tool = Path(arguments.build) / "headgate"
    print(f"transformers {transformers.__version__}")
    good = [check(tool, name, template, bos, end) for name, template, bos, end in TEMPLATES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

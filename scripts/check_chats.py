#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the prompts of `headgate generate --chat` with those of transformers' apply_chat_template.

    check_chats.py [BUILD] [--write-golden DIR]

BUILD: the build folder (default: build). A model of random numbers with a small tokenizer is given one chat template
after another, those of the models named below without what they say of tools. --write-golden: writes
DIR/chats.json, the texts by which tests/models/generate checks the same without Python, and compares nothing. Needs what
scripts/python_venv.sh installs.
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

CHATML_TURN = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
CHATML_REPLY = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


def chatml(default):
    """With a system's text where there is none."""
    first = (
        f"{{% if loop.first and messages[0]['role'] != 'system' %}}{{{{ '{default}' }}}}{{% endif %}}"
        if default
        else ""
    )
    return "{% for message in messages %}" + first + CHATML_TURN + "{% endfor %}" + CHATML_REPLY


LLAMA3_TURN = (
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim"
    " + '<|eot_id|>' %}"
)
LLAMA3_REPLY = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
LLAMA3 = (
    "{% for message in messages %}"
    + LLAMA3_TURN
    + "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    + LLAMA3_REPLY
)
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_FIRST = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}"
)


def mistral(begin, end):
    return f"""{{%- if messages[0]["role"] == "system" %}}
    {{%- set system_message = messages[0]["content"] %}}
    {{%- set loop_messages = messages[1:] %}}
{{%- else %}}
    {{%- set loop_messages = messages %}}
{{%- endif %}}
{{{{- bos_token }}}}
{{%- for message in loop_messages %}}
    {{%- if message["role"] == "user" %}}
        {{%- if loop.last and system_message is defined %}}
            {{{{- "{begin}" + system_message + "\\n\\n" + message["content"] + "{end}" }}}}
        {{%- else %}}
            {{{{- "{begin}" + message["content"] + "{end}" }}}}
        {{%- endif %}}
    {{%- elif message["role"] == "assistant" %}}
        {{{{- " " + message["content"] + eos_token}}}}
    {{%- endif %}}
{{%- endfor %}}
"""


def qwen35(default, other):
    """Trims every text. default, other: what stands before an answer, and what if enable_thinking says otherwise."""
    asked = "false" if default == "<think>\\n" else "true"
    return f"""{{%- if messages[0].role == 'system' %}}
    {{%- set content = messages[0].content|trim %}}
    {{{{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}}}
{{%- endif %}}
{{%- for message in messages %}}
    {{%- set content = message.content|trim %}}
    {{%- if message.role == "user" %}}
        {{{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}}}
    {{%- elif message.role == "assistant" %}}
        {{{{- '<|im_start|>' + message.role + '\\n<think>\\n\\n</think>\\n\\n' + content + '<|im_end|>\\n' }}}}
    {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
    {{{{- '<|im_start|>assistant\\n' }}}}
    {{%- if enable_thinking is defined and enable_thinking is {asked} %}}
        {{{{- '{other}' }}}}
    {{%- else %}}
        {{{{- '{default}' }}}}
    {{%- endif %}}
{{%- endif %}}"""


THINKING = "<think>\\n", "<think>\\n\\n</think>\\n\\n"
THINKING_REPLY = "{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
NO_FUNCTIONS = "You do not currently have access to any functions. <functions></functions><|im_end|>\\n"


def olmo3(name, reply):
    """With a text that follows the system's own."""
    return (
        "{% set has_system = messages|selectattr('role', 'equalto', 'system')|list|length > 0 %}{% if not has_system %}"
        + f"{{{{ '<|im_start|>system\\n{name} {NO_FUNCTIONS}' }}}}{{% endif %}}"
        + "{% for message in messages %}{% if message['role'] == 'system' %}"
        + f"{{{{ '<|im_start|>system\\n' + message['content'] }}}}{{{{ ' {NO_FUNCTIONS}' }}}}"
        + "{% else %}"
        + CHATML_TURN
        + "{% endif %}"
        + f"{{% if loop.last and add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n{reply}' }}}}{{% endif %}}{{% endfor %}}"
    )


OLMO3_INSTRUCT = (
    "{%- set has_system = messages|selectattr('role', 'equalto', 'system')|list|length > 0 -%}{%- if not has_system -%}"
    "{{- '<|im_start|>system\\nYou are a helpful function-calling AI assistant. ' -}}"
    f"{{%- if tools is none -%}}{{{{- '{NO_FUNCTIONS}' -}}}}{{%- endif -%}}{{%- endif -%}}"
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- if loop.last and add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}{%- endfor -%}"
)
GEMMA_ROLE = "('model' if message['role'] == 'assistant' else message['role'])"
GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + " + GEMMA_ROLE + " + '\n' + message['content'] | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {{ '<start_of_turn>' + ROLE + '\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
""".replace("ROLE", GEMMA_ROLE)
SYSTEM_TURN = "<|im_start|>system\\n{}<|im_end|>\\n"
SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QWEN25 = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

STEP_BOS = "<｜begin▁of▁sentence｜>"

# name, format, template, BOS, end of turn
HARMONY = """{{- "<|start|>system<|message|>" }}
{{- "You are ChatGPT, a large language model trained by OpenAI." + "\\n" }}
{{- "Knowledge cutoff: 2024-06\\n" }}
{{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
{%- if reasoning_effort is not defined %}
    {%- set reasoning_effort = "medium" %}
{%- endif %}
{{- "Reasoning: " + reasoning_effort + "\\n\\n" }}
{{- "# Valid channels: analysis, commentary, final. Channel must be included for every message." }}
{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {{- "<|start|>developer<|message|>" }}
    {{- "# Instructions\\n\\n" }}
    {{- messages[0].content }}
    {{- "\\n\\n" }}
    {{- "<|end|>" }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- else %}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}"""
TEMPLATES = [
    ("SmolLM2", "ChatML", chatml(SYSTEM_TURN.format(SMOLLM2)), "<|im_start|>", "<|im_end|>"),
    ("Qwen2.5", "ChatML", chatml(SYSTEM_TURN.format(QWEN25)), None, "<|im_end|>"),
    ("Qwen3", "ChatML", chatml(""), None, "<|im_end|>"),
    (
        "Qwen3-Next Thinking",
        "ChatML with thinking",
        chatml("").replace(CHATML_REPLY, THINKING_REPLY),
        None,
        "<|im_end|>",
    ),
    (
        "Step-3.5",
        "ChatML with thinking",
        "{{bos_token}}" + chatml("").replace(CHATML_REPLY, THINKING_REPLY),
        STEP_BOS,
        "<|im_end|>",
    ),
    ("ChatML with BOS", "ChatML", "<s>" + chatml(""), "<s>", "<|im_end|>"),
    ("Qwen3.5", "Qwen3.5", qwen35(*THINKING), None, "<|im_end|>"),
    ("Qwen3.5 0.8B", "Qwen3.5", qwen35(*reversed(THINKING)), None, "<|im_end|>"),
    ("OLMo 3", "OLMo 3", olmo3("You are OLMo.", ""), None, "<|im_end|>"),
    ("OLMo 3 Think", "OLMo 3", olmo3("You are OLMo.", "<think>"), None, "<|im_end|>"),
    ("OLMo 3 Instruct", "OLMo 3", OLMO3_INSTRUCT, None, "<|im_end|>"),
    ("Gemma 2", "Gemma", GEMMA2, "<bos>", "<end_of_turn>"),
    ("Gemma 3", "Gemma", GEMMA3, "<bos>", "<end_of_turn>"),
    ("Llama 3", "Llama 3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama 3.1", "Llama 3.1", LLAMA31, "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama 2", "Llama 2", LLAMA2, "<s>", "</s>"),
    ("gpt-oss", "Harmony", HARMONY, None, "<|return|>"),
    ("Mistral 7B v0.1", "Mistral", MISTRAL_FIRST, "<s>", "</s>"),
    ("Mistral 7B v0.2", "Mistral", mistral(" [INST] ", " [/INST]"), "<s>", "</s>"),
    ("Mistral 7B v0.3", "Mistral", mistral("[INST] ", "[/INST]"), "<s>", "</s>"),
    ("Mistral Nemo", "Mistral", mistral("[INST]", "[/INST]"), "<s>", "</s>"),
]
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>",
    "[INST]", "[/INST]", "<bos>", "<start_of_turn>", "<end_of_turn>", STEP_BOS,
    "<|start|>", "<|message|>", "<|end|>", "<|return|>", "<think>", "</think>",
]  # fmt: skip
QUESTIONS = [
    {"system": "", "user": "What is a gate?"},
    {"system": "Be brief.", "user": "What is a gate?"},
    {"system": "  Answer in French,\n\nplease. ", "user": "\n Qu’est-ce qu’un «gate»? \u00a0\n"},
]
NEXT_QUESTION = " And a sink?"


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


def messages_of(question):
    system = [{"role": "system", "content": question["system"]}] if question["system"] else []
    return system + [{"role": "user", "content": question["user"]}]


def applied(tokenizer, question, **options):
    """None where the template refuses a system's text."""
    try:
        return tokenizer.apply_chat_template(messages_of(question), add_generation_prompt=True, **options)
    except jinja2.exceptions.TemplateError:
        return None


def next_turn(tokenizer):
    """The text of two questions, from the answer to the first on."""
    answer = "An answer."
    messages = [
        *messages_of(QUESTIONS[0]),
        {"role": "assistant", "content": answer},
        {"role": "user", "content": NEXT_QUESTION},
    ]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return text[text.index(answer) + len(answer) :].removeprefix(" ")  # Llama 2 puts a space behind every answer


def write_golden(folder):
    cases = []
    for name, kind, template, bos, end in TEMPLATES:
        tokenizer = tokenizer_of(template, bos, end)
        questions = [{**question, "text": applied(tokenizer, question, tokenize=False)} for question in QUESTIONS]
        dialogue = {"question": NEXT_QUESTION, "text": next_turn(tokenizer)}
        date = datetime.date.today().isoformat()  # which a template may write
        cases.append(
            {
                "name": name,
                "format": kind,
                "bos": bos,
                "date": date,
                "template": template,
                "questions": questions,
                "dialogue": dialogue,
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chats.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_model(folder, vocab):
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def ours(tool, folder, question):
    """The ids of the prompt; None where it is refused."""
    command = [tool, "generate", folder, "--chat", "--prompt", question["user"], "--max-tokens", "1", "--json"]
    if question["system"]:
        command += ["--system", question["system"]]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 2 and "no system text" in result.stderr:
        return None
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)["prompt_ids"]


def our_next_turn(tool, folder):
    """The ids that the second of two questions adds."""
    command = [tool, "generate", folder, "--chat", "--max-tokens", "1", "--json"]
    text = QUESTIONS[0]["user"] + "\n" + NEXT_QUESTION + "\n"
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[1])["prompt_ids"]


def check(tool, name, template, bos, end):
    tokenizer = tokenizer_of(template, bos, end)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_model(folder, len(tokenizer))
        tokenizer.save_pretrained(folder)
        wrong = []
        for question in QUESTIONS:
            theirs = applied(tokenizer, question, tokenize=True, return_dict=False)
            mine = ours(tool, folder, question)
            if mine != theirs:
                wrong.append(
                    f"{question}: {mine and tokenizer.decode(mine)!r}, not {theirs and tokenizer.decode(theirs)!r}"
                )
        mine, theirs = tokenizer.decode(our_next_turn(tool, folder)), next_turn(tokenizer)
        if mine != theirs:
            wrong.append(f"the next turn: {mine!r}, not {theirs!r}")
    print(f"{name:16s} {'; '.join(wrong) or 'the same'}")
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--write-golden", metavar="DIR", help="write DIR/chats.json")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.write_golden:
        write_golden(Path(arguments.write_golden))
        return 0
    tool = Path(arguments.build) / "headgate"
    print(f"transformers {transformers.__version__}")
    good = [check(tool, name, template, bos, end) for name, _, template, bos, end in TEMPLATES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

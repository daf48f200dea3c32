# SPDX-License-Identifier: Apache-2.0
"""Chat templates for check_chats.py, which compares Headgate with transformers. The first are those of known models,
without most of their text about tools. The others differ from one of them in one place."""

CHATML_TURN = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
CHATML_REPLY = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


def chatml(default):
    """Returns the ChatML template. Conversations without a system message start with the text `default`, if any."""
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
    """Returns a template of Qwen3.5, which trims every text. The text `default` precedes an answer. If enable_thinking
    is set to the opposite, `other` does."""
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
    """Returns a template of OLMo 3. It appends NO_FUNCTIONS to the system message, or to the text `name` if there is
    none. `reply` starts an answer."""
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

HARMONY = """{%- macro render_builtin_tools(browser_tool, python_tool=false) -%}
    {%- if browser_tool %}
        {{- "## browser\\n\\n" }}
    {%- endif -%}
{%- endmacro -%}
{%- macro build_system_message() -%}
    {%- if model_identity is not defined %}
        {%- set model_identity = "You are ChatGPT, a large language model trained by OpenAI." %}
    {%- endif %}
    {{- model_identity + "\\n" }}
    {{- "Knowledge cutoff: 2024-06\\n" }}
    {{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
    {%- if reasoning_effort is not defined %}
        {%- set reasoning_effort = "medium" %}
    {%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\\n\\n" }}
    {%- if builtin_tools %}
        {{- render_builtin_tools("browser" in builtin_tools) }}
    {%- endif -%}
    {{- "# Valid channels: analysis, commentary, final. Channel must be included for every message." }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}
{{- build_system_message() }}
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
        {%- if "<|channel|>final<|message|>" in message.content %}
            {{- raise_exception("You have passed a message containing <|channel|> tags in the content field.") }}
        {%- endif %}
        {%- if loop.last and not add_generation_prompt %}
            {%- if message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- else %}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
DEEPSEEK = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, system_prompt='', is_first_sp=true) %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}"
    "{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}"
    "{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}"
    "{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"
)
PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
    "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
    "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PHI4 = (
    "{% for message in messages %}{% if (message['role'] == 'system') %}"
    "{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}"
    "{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}"
    "{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
SMOLLM3 = """{#- defaults -#}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- if enable_thinking -%}
    {%- set reasoning_mode = "/think" -%}
{%- else -%}
    {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}
{{- "<|im_start|>system\n" -}}
{%- set today = strftime_now("%d %B %Y") -%}
{%- if messages[0].role == "system" -%}
    {%- set system_message = messages[0].content -%}
    {%- if "/no_think" in system_message -%}
        {%- set reasoning_mode = "/no_think" -%}
    {%- endif -%}
    {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "## Metadata\n\nToday Date: " ~ today ~ "\nReasoning Mode: " + reasoning_mode + "\n\n" -}}
{{- "## Custom Instructions\n\n" -}}
{%- if custom_instructions -%}
    {{- custom_instructions + "\n\n" -}}
{%- else -%}
    {{- "You are a helpful AI assistant named SmolLM, trained by Hugging Face.\n\n" -}}
{%- endif -%}
{%- if xml_tools or python_tools or tools -%}
    {{- "### Tools\n\n" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\n"  + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\n" }}{% if reasoning_mode == "/no_think" %}{{ "<think>\n\n</think>\n" }}{% endif %}
{%- endif -%}"""
GRANITE = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.
Today's Date: " + strftime_now('%B %d, %Y') + ".
You are Granite, developed by IBM." %}
    {%- if tools and documents %}
        {%- set system_message = system_message + " Write the response in the controls." %}
    {%- else %}
        {%- set system_message = system_message + " You are a helpful AI assistant." %}
    {%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>
' }}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>
' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
            {%- if controls %}
                {{- ' ' + controls | tojson()}}
            {%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""
COMMAND_R = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}"
    "{% set system_message = 'You are Command-R.' %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% if system_message != false %}"
    "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set content = message['content'] %}{% if message['role'] == 'user' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)
MISTRAL_SMALL = """{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default_system_message = "You are Mistral Small 3.\\nThe current date is " + today + ".\\n\\nWhen you're not sure, say so" %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}
        {%- set system_message = messages[0]['content'] %}
    {%- else %}
        {%- set system_message = messages[0]['content'][0]['text'] %}
    {%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}
                    {{- block['text'] }}
                {%- elif block['type'] in ['image', 'image_url'] %}
                    {{- '[IMG]' }}
                {%- endif %}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}"""
GLM4 = """[gMASK]<sop>
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if '</think>' in content %}
    {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\\n<think>' + reasoning_content.strip() +  '</think>'}}
{%- else -%}
{{ '\\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\\n' + content.strip() }}
{%- endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}"""
GEMMA4 = """{%- macro strip_thinking(text) -%}
    {%- set ns = namespace(result='') -%}
    {%- for part in text.split('</think>') -%}
        {%- if '<think>' in part -%}
            {%- set ns.result = ns.result + part.split('<think>')[0] -%}
        {%- else -%}
            {%- set ns.result = ns.result + part -%}
        {%- endif -%}
    {%- endfor -%}
    {{- ns.result | trim -}}
{%- endmacro -%}

{%- set loop_messages = messages -%}
{{ bos_token }}
{%- if (enable_thinking is defined and enable_thinking) or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<start_of_turn>system\\n' -}}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set loop_messages = messages[1:] -%}
    {%- endif -%}
    {{- '<end_of_turn>\\n' -}}
{%- endif %}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<start_of_turn>' + role + '\\n' }}
    {%- if message['content'] is string -%}
        {{- strip_thinking(message['content']) if role == 'model' else message['content'] | trim -}}
    {%- endif -%}
    {{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
    {{- '' if enable_thinking | default(false) else '<think>\\n</think>' -}}
{%- endif -%}
"""
LLAMA32 = LLAMA31.replace(
    '{%- set date_string = "26 Jul 2024" %}',
    '{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}'
    '{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}',
)
FRAMED = "('<<' + message['content'] + '>>' if message['role'] == 'system' else message['content'])"
DEFAULT = "'<|im_start|>system\\n' + s + '<|im_end|>\\n'"
SYSTEM_AS_USER = "('user' if message['role'] == 'system' else message['role']) +"
YI = (
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}"
    "{% if system_message is defined %}{{ system_message }}{% endif %}{% for message in messages %}"
    "{% set content = message['content'] %}{% if message['role'] == 'user' %}"
    "{{ '<|im_start|>user\\n' + content + '<|im_end|>\\n<|im_start|>assistant\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ content + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}"
)

# Each row has the name, the template, the BOS token and the end-of-turn token.
TEMPLATES = [
    ("SmolLM2", chatml(SYSTEM_TURN.format(SMOLLM2)), "<|im_start|>", "<|im_end|>"),
    ("Qwen2.5", chatml(SYSTEM_TURN.format(QWEN25)), None, "<|im_end|>"),
    ("ChatML", chatml(""), None, "<|im_end|>"),
    ("Qwen3", QWEN3, None, "<|im_end|>"),
    ("Qwen3-Next Thinking", chatml("").replace(CHATML_REPLY, THINKING_REPLY), None, "<|im_end|>"),
    ("Step-3.5", "{{bos_token}}" + chatml("").replace(CHATML_REPLY, THINKING_REPLY), STEP_BOS, "<|im_end|>"),
    ("ChatML with BOS", "<s>" + chatml(""), "<s>", "<|im_end|>"),
    ("Yi", YI, None, "<|im_end|>"),
    ("Qwen3.5", qwen35(*THINKING), None, "<|im_end|>"),
    ("Qwen3.5 0.8B", qwen35(*reversed(THINKING)), None, "<|im_end|>"),
    ("OLMo 3", olmo3("You are OLMo.", ""), None, "<|im_end|>"),
    ("OLMo 3 Think", olmo3("You are OLMo.", "<think>"), None, "<|im_end|>"),
    ("OLMo 3 Instruct", OLMO3_INSTRUCT, None, "<|im_end|>"),
    ("SmolLM3", SMOLLM3, None, "<|im_end|>"),
    ("Gemma 2", GEMMA2, "<bos>", "<end_of_turn>"),
    ("Gemma 3", GEMMA3, "<bos>", "<end_of_turn>"),
    ("Gemma 4", GEMMA4, "<bos>", "<end_of_turn>"),
    ("Llama 3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama 3.1", LLAMA31, "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama 3.2", LLAMA32, "<|begin_of_text|>", "<|eot_id|>"),
    ("Llama 2", LLAMA2, "<s>", "</s>"),
    ("gpt-oss", HARMONY, None, "<|return|>"),
    ("Mistral 7B v0.1", MISTRAL_FIRST, "<s>", "</s>"),
    ("Mistral 7B v0.2", mistral(" [INST] ", " [/INST]"), "<s>", "</s>"),
    ("Mistral 7B v0.3", mistral("[INST] ", "[/INST]"), "<s>", "</s>"),
    ("Mistral Nemo", mistral("[INST]", "[/INST]"), "<s>", "</s>"),
    ("Mistral Small", MISTRAL_SMALL, "<s>", "</s>"),
    ("DeepSeek R1", DEEPSEEK, STEP_BOS, "<｜end▁of▁sentence｜>"),
    ("Phi-3", PHI3, "<s>", "<|end|>"),
    ("Phi-4", PHI4, None, "<|im_end|>"),
    ("Zephyr", ZEPHYR, "<s>", "</s>"),
    ("Granite", GRANITE, None, "<|end_of_text|>"),
    ("Command R", COMMAND_R, "<s>", "<|END_OF_TURN_TOKEN|>"),
    ("GLM-4.5", GLM4, None, "<|user|>"),
    # Templates as fine-tuned models have them. Each differs from one above in one place.
    ("trimmed", chatml("").replace("message['content']", "message['content'] | trim"), None, "<|im_end|>"),
    ("stripped", chatml("").replace("message['content']", "message['content'].strip()"), None, "<|im_end|>"),
    ("framed system", chatml("").replace("message['content']", FRAMED), None, "<|im_end|>"),
    ("default in a variable", "{% set s = 'Be kind.' %}" + chatml("X").replace("'X'", DEFAULT), None, "<|im_end|>"),
    ("default by filter", "{{ (system | default('Be kind.')) ~ '\\n' }}" + chatml(""), None, "<|im_end|>"),
    ("without BOS", LLAMA3.replace("bos_token + ", ""), "<|begin_of_text|>", "<|eot_id|>"),
    ("BOS twice", "{{ bos_token }}" + LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    ("EOS behind turns", chatml("").replace("'<|im_end|>' + '\\n'", "eos_token"), None, "<|im_end|>"),
    ("reply prefix", chatml("").replace("assistant\\n'", "assistant\\nSure: '"), None, "<|im_end|>"),
    ("reply in a language", chatml("").replace("assistant\\n'", "assistant (en)\\n'"), None, "<|im_end|>"),
    ("upper roles", chatml("").replace("message['role'] +", "message['role'] | upper +"), None, "<|im_end|>"),
    ("numbered turns", chatml("").replace("message['role'] +", "message['role'] ~ loop.index +"), None, "<|im_end|>"),
    ("no newline", chatml("").replace("'\\n' + message", "': ' + message"), None, "<|im_end|>"),
    ("other tail", chatml("").replace("'<|im_end|>' + '\\n'", "'<|im_end|>' + '\\n\\n'"), None, "<|im_end|>"),
    ("question last", LLAMA2.replace("content.strip() + ' [/INST]'", "content + '[/INST]\\n'"), "<s>", "</s>"),
    ("system as user", chatml("").replace("message['role'] +", SYSTEM_AS_USER), None, "<|im_end|>"),
    ("only the last turn", chatml("").replace("in messages", "in messages[-1:]"), None, "<|im_end|>"),
    ("model for assistant", GEMMA2.replace("'<end_of_turn>\n'", "'<end_of_turn>'"), "<bos>", "<end_of_turn>"),
    ("text behind", chatml("") + "{# end #}\nAnswer:", None, "<|im_end|>"),
]
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>",
    "[INST]", "[/INST]", "<bos>", "<start_of_turn>", "<end_of_turn>", STEP_BOS,
    "<|start|>", "<|message|>", "<|end|>", "<|return|>", "<think>", "</think>",
    "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<|user|>", "<|assistant|>", "<|system|>", "<|im_sep|>", "<|channel|>",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "[gMASK]", "<sop>",
    "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
]  # fmt: skip
QUESTIONS = [
    {"system": "", "user": "What is a gate?"},
    {"system": "Be brief.", "user": "What is a gate?"},
    {"system": "  Answer in French,\n\nplease. ", "user": "\n Qu’est-ce qu’un «gate»? \u00a0\n"},
]
NEXT_QUESTION = " And a sink?"

# VARIABLES are the variables of EXPRESSIONS, a template that uses many features of Jinja. check_chats.py renders the
# whole template, and each line as a template.
VARIABLES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hé 中文 \n"},
        {"role": "assistant", "content": "<think>a</think>b"},
        {"role": "user", "content": "And?"},
    ],
    "tools": None,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "n": 7,
    "x": 2.5,
    "d": {"a": 1, "b": [1, "two", None, True, 1.5, {"c": '"q"\n\u00e9'}]},
    "s": "a-b-c  d\te",
}
EXPRESSIONS = r"""{{ messages[0].content }}|{{ messages[-1]['content'] }}|{{ messages[::-1][0].content }}|{{ s[1:3] }}|{{ s[::-1] }}|{{s[-1]}}|{{ messages[1].content[1:3]}}
{{ n // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ n / 2 }} {{ n * x }} {{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 'a' * 3 }} {{ 'a' ~ 1 ~ none ~ true ~ undefd }}
{{ d | tojson }} {{ d | tojson(indent=2) }}
{{ d.items() | list | length }} {{ d.keys()|list|join(',') }} {{ d.get('zz') }} {{ d.get('zz', 'q') }} {{ d.get('a') }}
{%- for k, v in d.items() %}[{{k}}]{% endfor %}
  {% for m in messages %}
    {% if m.role == 'user' and not loop.last %}
u{{ loop.index }}{{ m.content | trim }}
    {%- elif m.role != 'system' -%}
  e{{ loop.index0 }} {{ loop.revindex }} {{ loop.first }} {{ loop.last }} {{loop.previtem.role}}
    {% else %}
    {# comment #}
sys
    {% endif %}
  {% endfor %}
{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}{{ ns.a }}{{ ns.zz is defined }}
{% macro f(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}{{ bos_token }}>{% endmacro %}{{ f(1) }}{{ f(1, c=2) }}{{ f('x', 'y', 'z') }}
{% set q %}block {{ n }}{% endset %}{{ q | upper }}{% set r | upper %}abc{% endset %}{{ r }}
{{ 'yes' if n > 3 else 'no' }}{{ 'yes' if n < 3 }}{{ 3 < n < 10 }}{{ n in [1, 7] }}{{ 'a' not in s }}{{ 'role' in messages[0] }}
{{ s.split('-') | join('+') }} {{ s.split() | join('+') }} {{ s.split('-', 1)[-1] }} {{ s.rsplit('-', 1)[0] }} {{ s.startswith('a-') }} {{ s.endswith(('x', 'e')) }} {{ s.replace('-', '_') }} {{ s.replace('-', '_', 1) }} {{ s.upper() }} {{ s.title() }} {{ s.capitalize() }} {{ s.find('b') }} {{ s.count('-') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | join(',') }} {{ messages | map(attribute='content') | map('trim') | join('/') }} {{ [1,0,2] | select | list | length }} {{ [1,2,3]|select('odd')|list|length }}
{{ undefd | default('D') }} {{ '' | default('D', true) }} {{ none | default('D') }} {{ undefd is undefined }} {{ undefd is not defined }} {{ none is none }} {{ n is number }} {{ s is string }} {{ d is mapping }} {{ messages is iterable }} {{ messages is sequence }} {{ true is boolean }} {{ n is odd }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }} {{ n is in [7] }} {{ false is false }}
{{ '12' | int + 1 }} {{ 'zz' | int }} {{ 3.7 | int }} {{ 'abc' | length }} {{ messages[1].content | length }} {{ [3,1] | first }} {{ [3,1] | last }} {{ 'abc' | reverse }} {{ 'abc' | list | join('-') }} {{ -3 | abs }}
{% for i in [] %}x{% else %}empty{% endfor %}{% for i in range(10) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{% endfor %}
{%- set a, b = 1, 2 %}{{ a }}{{ b }}{{ {'k': 'v', 'w': [1, 2]}['w'][1] }} {{ {'a': 1}.a }} {{ dict(a=5).a }}
{{ "esc \"q\" \\ \n \t \x41 \u00e9" }} {{ 'it\'s' }} {{ 'a' 'b' }}
{% generation %}gen{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}
  {%+ if true %}plus{% endif %}
   {{- ' x ' -}}
y {%- if true +%}
z{% endif %}
{{ 1.0 }} {{ 0.1 }} {{ loop is defined }} {{ loop is defined }} {{ namespace is defined }} {{ strftime_now is defined }} {{ 1 == 1.0 }} {{ true == 1 }} {{ [1,2] == [1,2] }} {{ d.b[5].c }} {{ not n }} {{ n and 'k' }} {{ undefd or 'o' }} {{ d.b.0 }}"""

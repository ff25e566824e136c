"""Chat templates render as transformers renders them, and refuse with a message that a client can be shown."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from aie_engine import chat_template
from aie_engine.chat_template import ChatTemplate
from aie_engine.errors import ChatTemplateError

CONVERSATION = [
    {"role": "system", "content": "Be brief & <kind>.\n"},
    {"role": "user", "content": "¿Qué tal? 'quoted' \"double\" {{ not a template }}"},
    {"role": "assistant", "content": "  Bien.  "},
    {"role": "user", "content": ""},
]
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "smollm2": SMOLLM2,
    "blocks and indentation": """
    {%- for message in messages %}
        {% if message.role == 'user' %}
    U: {{ message.content | trim }}
        {% else %}
    O: {{ message.content }}
        {% endif %}
    {% endfor %}
    """,
    "tojson": "{{ messages | tojson(indent=2) }}{{ messages[0] | tojson }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "variables": "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ eos_token }}",
    "date": "{{ strftime_now('%Y-%m') }}",
    "generation prompt": "{% if add_generation_prompt %}yes{% else %}no{% endif %}",
}
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers(name: str, first: int, add_generation_prompt: bool) -> None:
    messages = CONVERSATION[first:]
    expected = render_jinja_template(
        conversations=[messages],
        chat_template=TEMPLATES[name],
        add_generation_prompt=add_generation_prompt,
        **VARIABLES,
    )[0][0]
    rendered = ChatTemplate(TEMPLATES[name], VARIABLES).render(messages, add_generation_prompt=add_generation_prompt)
    assert rendered == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['absent'] + 'x' }}", "absent"),
        ("{{ messages[9].role }}", "no element"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 // 0 }}", "zero"),
        ("{% for i in range(10000000) %}x{% endfor %}", "[Rr]ange"),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "ranges of more than"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ 'x' * 10**18 }}", "MemoryError"),
        ("{% include 'secrets' %}", "loader"),
    ],
)
def test_failures_carry_their_reason(source: str, reason: str) -> None:
    with pytest.raises(ChatTemplateError, match=reason):
        ChatTemplate(source).render(CONVERSATION)


def test_ranges_of_one_rendering_are_not_charged_to_the_next() -> None:
    template = ChatTemplate("{% for i in range(600000) %}{% endfor %}{{ range(3) | list }}")
    assert [template.render(CONVERSATION) for _ in range(3)] == ["[0, 1, 2]"] * 3


def test_template_that_does_not_compile() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}")


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 1_000)
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert len(template.render([{"role": "user", "content": "x" * 1_000}])) == 1_000
    with pytest.raises(ChatTemplateError, match="more than 1000"):
        template.render([{"role": "user", "content": "x" * 501}] * 2)

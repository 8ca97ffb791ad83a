"""Names of a user's operands in generated code: kept, unless the templates or C++ use them for something else."""

from __future__ import annotations

import functools
import re
from importlib import resources

from kgen.codegen.library import blocks

# fmt: off
_KEYWORDS = frozenset({
    "alignas", "alignof", "and", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char", "class",
    "compl", "const", "constexpr", "continue", "decltype", "default", "delete", "do", "double", "else", "enum",
    "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long",
    "mutable", "namespace", "new", "noexcept", "not", "nullptr", "operator", "or", "private", "protected", "public",
    "register", "return", "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw",
    "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual", "void", "volatile",
    "wchar_t", "while", "xor", "sum",
})
# fmt: on
#: Names that are made with numbers: results of an expression, sizes, indices, batches.
_NUMBERED = re.compile(
    r"(v|result|n|i|rest|batch|batches)\d*|(found|value|divisor|inverse|mantissa|scale|place|position|random|index|top|id|find|inside)\d+"
    r"|\w+_(row|value|vector|items|tile|shared|start|first|next|at\d*|AT|offset)|size_\w+"
)


@functools.cache
def identifier(name: str) -> str:
    """The operand's or scalar's name as generated code has it: with `_` behind where it would mean something else."""
    return f"{name}_" if name in _taken() or _NUMBERED.fullmatch(name) else name


@functools.lru_cache(maxsize=1)
def _taken() -> frozenset[str]:
    """Keywords, the shared functions, and all words of C++ that stand in the templates."""
    words = set(_KEYWORDS) | blocks("common").keys() | {"ptx"}
    root = resources.files("kgen.templates")
    for folder in (root, root.joinpath("macros")):
        for file in folder.iterdir():
            if file.name.endswith(".j2"):
                text = re.sub(r"^\s*//[%#].*$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
                words |= set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", re.sub(r"\{\{.*?\}\}|\{%.*?%\}|//.*", " ", text)))
    return frozenset(words)

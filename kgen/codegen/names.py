"""Names of a user's operands in generated code: their own, unless the kernel or C++ uses the word for something else."""

from __future__ import annotations

import re
from collections.abc import Iterable

# fmt: off
_KEYWORDS = frozenset({
    "alignas", "alignof", "and", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char", "class",
    "compl", "const", "constexpr", "continue", "decltype", "default", "delete", "do", "double", "else", "enum",
    "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long",
    "mutable", "namespace", "new", "noexcept", "not", "nullptr", "operator", "or", "private", "protected", "public",
    "register", "return", "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw",
    "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual", "void", "volatile",
    "wchar_t", "while", "xor", "const_cast", "dynamic_cast", "reinterpret_cast", "restrict", "static_assert", "static_cast",
    "thread_local", "and_eq", "not_eq", "or_eq", "xor_eq", "char8_t", "char16_t", "char32_t", "concept", "consteval",
    "constinit", "co_await", "co_return", "co_yield", "requires", "typeof", "NULL", "errno", "linux", "unix", "stderr",
    "stdin", "stdout", "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize",
})
# fmt: on
#: What CUDA's own headers declare or define, and words that are taken without them: no kernel can have such a name.
_TAKEN = re.compile(
    r"(a?(cos|sin|tan)h?|atan2|abs|div|exp[2m]?1?|exp10|log(2|10|1p|b)?|r?sqrt|r?cbrt|pow|r?hypot|[fu]?(abs|dim|max|min|mod|ma)|modf|"
    r"frexp|ldexp|erfc?x?(inv)?|[lt]gamma|ceil|floor|l*round|l*rint|trunc|remainder|remquo|copysign|signbit|sin(cos)?(pi)?|cospi|"
    r"nearbyint|nexttoward|nextafter|scalbl?n|ilogb|nan|[jy][01n]|r?norm([34]d)?|normcdf(inv)?|fdivide|saturate)[fl]?|"
    r"l*abs|l*div|u?ll?(min|max)|is(nan|inf|finite|normal)|index|rand|time|exit|malloc|free|mem(cpy|set)|printf|main|abort|alloca|"
    r"clock(64)?|half2?|dim3|u?(char|short|int|long|longlong)[1-4]?|(float|double)[1-4]?|(make|vec)_\w+|\w+_t|"
    r"(atomic|tex|surf|cuda|nv|cyl_bessel)\w*|std|ptx|assert|offsetof|va_list|__\w+|_[A-Z]\w*|[A-Z][A-Z0-9_]*"
)
#: Stands around an operand's name until a text is whole: a letter to regular expressions, and in no name of Python's.
_MARK = "\N{CIRCLED DIGIT ZERO}"


def identifier(name: str) -> str:
    """An operand's or scalar's name for a template, which may make longer words of it; `settled` names them all."""
    return f"{_MARK}{name}{_MARK}"


def plain(word: str) -> str:
    """A word that is made of an operand's name, as it reads without a thought for others."""
    return word.replace(_MARK, "")


def settled(text: str) -> tuple[str, dict[str, str]]:
    """The text with a name for every word that is made of an operand's, and these names; see `apart`."""
    made = re.compile(rf"(?<!\w)\w*{_MARK}\w*")
    # Comments and strings are taken whole; what follows a dot or an arrow is a member.
    others = re.findall(r'//.*|"[^"\n]*"|(?<![.\w])(?<!->)[A-Za-z_]\w*', text)
    names = apart(dict.fromkeys(made.findall(text)), others)
    return made.sub(lambda word: names[word[0]], text), names


def apart(words: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Names for words made of operands': all different, no keywords and none of the others. Plain ones, but for a `_`."""
    names, taken = dict[str, str](), _KEYWORDS.union(others)
    for word in sorted(words, key=lambda w: (plain(w) in taken, w.strip(_MARK) != plain(w))):
        head, tail = word.rsplit(_MARK, 1)
        while plain(head) + tail in taken:
            head += "_"
        names[word] = plain(head) + tail
        taken = taken | {names[word]}
    return names


def kernel_name(name: str, body: str) -> str:
    """A kernel's name in its body: its operator's, with `_kernel` behind it where the body or C++ has that word already.

    What a body declares for all to see begins at the start of a line.
    """
    declared = set(re.findall(r"\w+", "\n".join(re.findall(r"^\w.*", body, re.MULTILINE))))
    if name in declared or name in _KEYWORDS or _TAKEN.fullmatch(name):
        name = f"{name.strip('_')}_kernel"
    while name in declared:
        name += "_"
    return name

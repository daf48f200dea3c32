# SPDX-License-Identifier: Apache-2.0
"""Generates the reference of the C++ and C API: a page for each header of include/headgate, from its comments, which
Doxygen reads. Items have the order of the header. A declaration without a comment shares the comment above it."""

import html
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include" / "headgate"
SETTINGS = """
INPUT = {headers}
FILE_PATTERNS = *.hpp *.h
STRIP_FROM_INC_PATH = {headers}/..
OUTPUT_DIRECTORY = {output}
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = HEADGATE_API= __cplusplus=202002L
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
"""
HIDDEN = re.compile(r"_H(PP)?_$|^HEADGATE_API$|STRINGIZE")  # macros that programs do not use

TAGS = {
    "computeroutput": "code", "emphasis": "em", "bold": "strong", "itemizedlist": "ul",
    "orderedlist": "ol", "listitem": "li", "verbatim": "pre", "programlisting": "pre", "superscript": "sup",
    "subscript": "sub", "row": "tr",
}  # fmt: skip
BLOCKS = re.compile(r"(<(?:pre|ul|ol|table)>.*?</(?:pre|ul|ol|table)>)", re.DOTALL)
CHARACTERS = {"sp": " ", "ndash": "–", "mdash": "—", "nonbreakablespace": "\u00a0", "linebreak": "<br>", "codeline": ""}


def run_doxygen(output):
    """Runs Doxygen on all headers. Returns the XML elements of its compounds, such as files and classes."""
    settings = SETTINGS.format(headers=HEADERS, output=output)
    done = subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"docs: doxygen: {done.stderr.strip()}")
    index = ElementTree.parse(output / "xml" / "index.xml").getroot()
    return [
        ElementTree.parse(output / "xml" / f"{compound.get('refid')}.xml").getroot().find("compounddef")
        for compound in index.findall("compound")
    ]


class Item:
    """A declaration of a header: a function, a type or a constant. `refs` are Doxygen's ids that link to it."""

    def __init__(self, element, name, kind):
        self.element, self.name, self.kind = element, name, kind
        self.refs = [element.get("id")] + [m.get("id") for m in element.iter("memberdef")]
        self.refs += [value.get("id") for value in element.iter("enumvalue")]
        location = element.find("location")
        self.file, self.line = location.get("file").rsplit("/", 1)[-1], int(location.get("line"))
        self.others = []  # declarations that share the comment

    @property
    def comment(self):
        return comment_of(self.element)


def comment_of(element):
    return [part for tag in ("briefdescription", "detaileddescription") for part in element.find(tag)]


def items_of(compounds):
    """Returns all items, sorted by header and line."""
    found = {}
    for compound in compounds:
        kind, name = compound.get("kind"), compound.findtext("compoundname").removeprefix("headgate::")
        if kind in ("struct", "class") and "::" not in name:
            found[compound.get("id")] = Item(compound, name, kind)
        if kind in ("file", "namespace"):
            for member in compound.iter("memberdef"):
                name = re.sub("^@.*", "", member.findtext("name"))  # Doxygen's name of an unnamed enum
                if not HIDDEN.search(name):
                    found[member.get("id")] = Item(member, name, member.get("kind"))
    return sorted(found.values(), key=lambda item: (item.file, item.line))


def merged(items):
    """Joins declarations that belong together. A declaration without a comment joins the one of its kind above it. In
    C, an unnamed enum and the macro that initialises a struct join the type above, and a typedef joins its struct."""
    kept = []
    for item in items:
        last = kept[-1] if kept and kept[-1].file == item.file else None
        same_name = next((other for other in kept if other.name == item.name and other.kind != "function"), None)
        if item.kind == "typedef" and same_name:
            same_name.refs += item.refs
        elif (
            last and not item.comment and (item.kind in (last.kind, "define") or item.kind == "enum" and not item.name)
        ):
            last.others.append(item)
            last.refs += item.refs
        else:
            kept.append(item)
    return kept


class Pages:
    def __init__(self, output):
        self.compounds = run_doxygen(output)
        self.items = merged(items_of(self.compounds))
        self.classes = {c.get("id"): c for c in self.compounds if c.get("kind") in ("struct", "class")}
        self.links, anchors = {}, {}
        for item in self.items:
            count = anchors[item.file, item.name] = anchors.get((item.file, item.name), 0) + 1
            item.anchor = item.name + (f"-{count - 1}" if count > 1 else "")
            self.links |= {ref: f"{item.file}.html#{item.anchor}" for ref in item.refs}
        for compound in self.compounds:
            if compound.get("kind") == "file":
                self.links[compound.get("id")] = compound.findtext("compoundname") + ".html"

    # --- comments, as HTML ---

    def inline(self, element):
        """Returns the text and elements within an element as HTML."""
        return html.escape(element.text or "") + "".join(
            self.outer(child) + html.escape(child.tail or "") for child in element
        )

    def outer(self, element):
        tag, inner = element.tag, self.inline(element)
        if tag == "para":
            parts = BLOCKS.split(inner)  # HTML allows no such blocks within a paragraph
            return "".join(part if i % 2 else paragraph(part) for i, part in enumerate(parts))
        if tag in TAGS:
            return f"<{TAGS[tag]}>{inner}</{TAGS[tag]}>" if inner.strip() else ""
        if tag in CHARACTERS:
            return CHARACTERS[tag] + inner + ("\n" if tag == "codeline" else "")
        if tag == "ref":
            link = self.links.get(element.get("refid"))
            return f'<a href="{link}">{inner}</a>' if link else inner
        if tag == "ulink":
            return f'<a href="{html.escape(element.get("url"))}">{inner}</a>'
        if tag == "table":
            return f"<table>{inner}</table>"
        if tag == "entry":
            cell = "th" if element.get("thead") == "yes" else "td"
            return f"<{cell}>{re.sub('</?p>', '', inner).strip()}</{cell}>"
        if tag == "highlight":
            return inner
        raise SystemExit(f"docs: headers.py does not know Doxygen's element <{tag}>: {inner[:60]}")

    def comment(self, parts):
        return "".join(self.outer(part) for part in parts)

    # --- items, as Markdown with HTML in it ---

    def type_of(self, element, tag="type"):
        found = element.find(tag)
        text = "" if found is None else "".join(found.itertext()).strip()
        return re.sub(r" ([*&])", r"\1", re.sub(r"(?<!<)< (?=\S)|(?<=\S) >(?!>)", lambda m: m[0].strip(), text))

    def value_of(self, element):
        text = self.type_of(element, "initializer")
        return re.sub(r"^= *", " = ", text)

    def signature(self, member, owner=""):
        """Returns a function's declaration. If one line would be too long, each parameter has its own."""
        template = member.find("templateparamlist")
        head = ""
        if template is not None:
            names = ", ".join(
                " ".join(filter(None, (self.type_of(p), p.findtext("declname")))) for p in template.findall("param")
            )
            head = f"template <{names}>\n"
        parameters = []
        for p in member.findall("param"):
            text = self.type_of(p)
            name = p.findtext("declname")
            if name and "(" not in text:
                text += f" {name}"
            default = self.type_of(p, "defval")
            parameters.append(text + (f" = {default}" if default else ""))
        start = f"{self.type_of(member)} {member.findtext('name')}(".lstrip()
        end = ") const" if member.get("const") == "yes" else ")"
        line = start + ", ".join(parameters) + end
        if len(line) > 88:
            line = start + "\n    " + ",\n    ".join(parameters) + end
        return re.sub(r" ([&*]) ?", r"\1 ", head + line).replace("( ", "(") + ";"

    def declaration(self, item):
        return "\n".join(self.one_declaration(each) for each in (item, *item.others) if each.name)

    def one_declaration(self, item):
        element, kind = item.element, item.kind
        if kind == "function":
            return self.signature(element)
        if kind == "variable":
            return f"{self.type_of(element)} {item.name}{self.value_of(element)};"
        if kind == "define":
            value = " ".join(self.type_of(element, "initializer").replace("\\\n", "").split())
            return f"#define {item.name} {value if len(value) < 60 else '…'}"
        if kind == "typedef":
            return (
                f"using {item.name} = {self.type_of(element)};"
                if item.file.endswith("hpp")
                else (f"typedef {self.type_of(element)} {item.name};")
            )
        if kind == "enum" and item.name:
            return f"enum class {item.name} : {self.type_of(element)}{self.plain_values(element)};"
        if item.others and item.others[0].kind == "enum":
            return f"typedef {self.type_of(element)} {item.name};\nenum{self.plain_values(item.others[0].element)};"
        return f"{kind} {item.name};"

    def rows(self, pairs):
        """Returns a definition list of (names, text) as HTML. The names of a pair share its text."""
        out = ""
        for names, text in pairs:
            terms = "".join(f"<dt><code>{html.escape(name)}</code></dt>" for name in names)
            out += terms + f"<dd>{text}</dd>"
        return f'<dl class="fields">{out}</dl>\n' if out else ""

    def values(self, element):
        return [(v.findtext("name") + self.value_of(v), v) for v in element.findall("enumvalue")]

    def plain_values(self, element):
        """Returns the constants of an enum for its declaration, or "" if one of them has a comment."""
        values = self.values(element)
        return (
            "" if any(comment_of(v) for _, v in values) else " {\n    " + ",\n    ".join(n for n, _ in values) + "\n}"
        )

    def documented_values(self, element):
        return (
            ""
            if self.plain_values(element)
            else self.rows(([n], self.comment(comment_of(v))) for n, v in self.values(element))
        )

    def grouped(self, members):
        """Returns the list of members as HTML. A member without a comment joins the member in the line above, if the
        comment of that member precedes it."""
        pairs, joins = [], None
        for name, element in members:
            location = element.find("location")
            line = int(location.get("line"))
            text = self.comment(comment_of(element))
            if not text and joins == line - 1 and element.get("kind") == "variable":
                pairs[-1][0].append(name)
            else:
                pairs.append(([name], text))
            own = "/<" in self.lines_of(location)[line - 1] or "*<" in self.lines_of(location)[line - 1]
            joins = line if (text or joins == line - 1) and not own else None
        return self.rows(pairs)

    def lines_of(self, location):
        return (HEADERS / Path(location.get("file")).name).read_text(encoding="utf-8").split("\n")

    def fields(self, element):
        members = sorted(element.iter("memberdef"), key=lambda m: int(m.find("location").get("line")))
        public = [m for m in members if m.get("prot") == "public" and m.get("kind") in ("variable", "function")]

        def text(m):
            if m.get("kind") == "function":
                return self.signature(m).removesuffix(";")
            return f"{self.type_of(m)} {m.findtext('name')}{m.findtext('argsstring') or ''}{self.value_of(m)}"

        return self.grouped((text(m), m) for m in public)

    def body(self, item):
        text = self.comment(item.comment)
        for each in (item, *item.others):
            if each.kind == "enum":
                text += self.documented_values(each.element)
        if item.kind in ("struct", "class"):
            text += self.fields(item.element)
            for inner in item.element.findall("innerclass"):
                nested = self.classes[inner.get("refid")]
                if inner.get("prot") == "public":
                    name = nested.findtext("compoundname").removeprefix("headgate::")
                    text += f"<p><code>struct {name}</code></p>" + self.fields(nested)
        return text

    def page(self, header):
        """Returns the page of a header as Markdown."""
        compound = next(c for c in self.compounds if c.get("kind") == "file" and c.findtext("compoundname") == header)
        intro = self.comment(comment_of(compound))
        out = [f"# {header}", f'```{language(header)}\n#include "headgate/{header}"\n```', block(intro)]
        for item in self.items:
            if item.file == header:
                out.append(f"## {item.name} {{ #{item.anchor} }}")
                out.append(f"```{language(header)}\n{self.declaration(item)}\n```")
                out.append(block(self.body(item)))
        return "\n\n".join(filter(None, out)) + "\n"


def paragraph(text):
    return f"<p>{text.strip()}</p>" if text.strip() else ""


def block(text):
    return f'<div class="api">{text}</div>' if text else ""


def language(header):
    return "cpp" if header.endswith("hpp") else "c"


def pages(output):
    """Returns (name, Markdown) for every header."""
    made = Pages(Path(output))
    return [(path.name, made.page(path.name)) for path in sorted(HEADERS.iterdir())]

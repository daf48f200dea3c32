# SPDX-License-Identifier: Apache-2.0
"""MkDocs hooks of the site. The site has the repository's tree, so that links between documents work as on a code host.
README.md is the home page. Every document has a page, and so does a source file that a document links. The navigation
is the table of docs/README.md."""

import functools
import html
import os
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
KATEX = Path("/usr/share/javascript/katex")  # Debian's libjs-katex
sys.path[:0] = [str(HERE), str(ROOT / "scripts")]
import check_links
import commands
import headers
import modules
import notebooks
import versions

PICTURES = {".png", ".svg", ".jpg", ".html"}  # copied as they are; other files are shown as text
INDEX = "docs/README.md"
SECTION = re.compile(r"^\|\s*(?:\*\*(.+?)\*\*)?\s*\|[^|]*\|(.*)\|\s*$", re.MULTILINE)


def on_config(config):
    config.mdx_configs["toc"]["slugify"] = lambda heading, _: check_links.anchor(heading)
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "math", "class": "arithmatex", "format": format_math}]
    }
    config.nav = navigation()
    config.copyright = f"Headgate {versions.current()}"
    if os.environ.get("HEADGATE_SITE_VERSIONS"):
        config.extra["version"] = {"provider": "mike"}  # its file is written by versions.py
    return config


def format_math(source, language, css_class, options, md, **kwargs):
    return f'<div class="{css_class}">\\[\n{html.escape(source)}\n\\]</div>'


# --- pages ---------------------------------------------------------------------------------------------------


def documents():
    """Returns the paths of all documents that scripts/check_links.py reads."""
    return [path.relative_to(ROOT).as_posix() for path in check_links.documents(ROOT)]


def linked_files(pages):
    """Returns the paths of all files that pages link and that are not documents."""
    targets = {target for page in pages for _, target, _ in check_links.links(ROOT / page)}
    return sorted(target.relative_to(ROOT).as_posix() for target in targets if target.suffix != ".md")


@functools.cache
def reference():
    """Generates the pages of the reference, as {heading: {path of a page: Markdown}}."""
    output = ROOT / "build" / "doxygen"
    output.mkdir(parents=True, exist_ok=True)
    of_headers = headers.pages(output)
    return {
        "C++ headers": {f"include/headgate/{n}.md": text for n, text in of_headers if n.endswith(".hpp")},
        "C headers": {f"include/headgate/{n}.md": text for n, text in of_headers if n.endswith(".h")},
        "Python modules": {f"docs/reference/modules/{n}.md": text for n, text in modules.pages()},
        "Commands": {f"docs/reference/commands/{n}.md": text for n, text in commands.pages()},
    }


@functools.cache
def notebook(path):
    return notebooks.executed(path)


def navigation():
    """Returns the sections of the index with their pages, in its order. A page README.md is followed by the other
    pages of its folder."""
    pages = documents()
    nav, used = [{"Home": ["README.md", INDEX]}], {"README.md", INDEX}
    for name, cell in SECTION.findall((ROOT / INDEX).read_text(encoding="utf-8")):
        if name:
            nav.append({name: []})
        for link in re.findall(r"\]\(([^)#]+\.md)\)", cell):
            page = (ROOT / "docs" / link).resolve().relative_to(ROOT).as_posix()
            if page in used:
                continue
            folder = page.removesuffix("README.md")
            below = [other for other in pages if folder != page and other.startswith(folder) and other != page]
            used |= {page, *below}
            section = next(iter(nav[-1].values()))
            section.append({title_of(page): [page, *below]} if folder != page else page)
    section = next(item["Reference"] for item in nav if "Reference" in item)
    section += [{heading: list(made)} for heading, made in reference().items()]
    nav.append({"Project": [page for page in pages if "/" not in page and page not in used]})
    return nav


def title_of(page):
    return re.search(r"^# (.*)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)[1]


def source_page(config, path):
    """Returns a page that shows a file, or lists a folder."""
    if (ROOT / path).is_dir():
        names = "\n".join(sorted(p.name + "/" * p.is_dir() for p in (ROOT / path).iterdir()))
        body = f"```text\n{names}\n```"
    else:
        text = (ROOT / path).read_text(encoding="utf-8")
        language = {".hpp": "cpp", ".cc": "cpp", ".h": "c"}.get(Path(path).suffix, Path(path).suffix[1:] or "text")
        fence = "`" * 4
        body = f"{fence}{language}\n{text}\n{fence}"
    content = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{body}\n"
    file = File.generated(config, path.rstrip("/") + ".md", content=content)
    file.inclusion = InclusionLevel.NOT_IN_NAV
    return file


@event_priority(100)
def on_files(files, config):
    """Replaces the files of docs/ by those of the repository's tree."""
    pages = documents()
    kept = [file for file in files if file.src_dir != config.docs_dir]
    kept += [File.generated(config, page, abs_src_path=str(ROOT / page)) for page in pages]
    generated = {path: text for made in reference().values() for path, text in made.items()}
    kept += [File.generated(config, path, content=text) for path, text in generated.items()]
    for path in linked_files(pages):
        if Path(path).suffix in PICTURES:
            kept.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        elif path.endswith(".ipynb"):
            text, pictures = notebook(path)
            made = {f"{path}.md": text} | {posixpath.join(posixpath.dirname(path), n): d for n, d in pictures.items()}
            kept += [File.generated(config, name, content=content) for name, content in made.items()]
            kept[-len(made)].inclusion = InclusionLevel.NOT_IN_NAV
        elif f"{path}.md" not in generated:
            kept.append(source_page(config, path))
    kept += assets(config)
    return Files(kept)


def assets(config):
    css = (KATEX / "katex.min.css").read_text(encoding="utf-8")
    css = re.sub(r"url\(fonts/[\w-]+\.woff2?\) format\('woff2?'\),", "", css)  # Debian has only the TrueType fonts
    yield File.generated(config, "assets/katex/katex.min.css", content=css)
    yield File.generated(config, "assets/katex/katex.js", abs_src_path=str(KATEX / "katex.js"))
    for font in sorted((KATEX / "fonts").glob("*.ttf")):
        yield File.generated(config, f"assets/katex/fonts/{font.name}", abs_src_path=str(font))
    for name in ("site.css", "math.js", "iframe-worker.js"):
        yield File.generated(config, f"assets/{name}", abs_src_path=str(HERE / name))


LINK = re.compile(r"(\]\()([^()\s#]+)([)#])")


def on_page_markdown(markdown, page, config, files):
    """Redirects links to source files to the pages that show them."""

    def replace(match):
        target = match[2]
        if "://" in target or target.endswith(".md"):
            return match[0]
        shown = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target)) + ".md"
        return match[0] if files.get_file_from_path(shown) is None else f"{match[1]}{target.rstrip('/')}.md{match[3]}"

    return LINK.sub(replace, markdown)

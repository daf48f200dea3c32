// SPDX-License-Identifier: Apache-2.0
// Typesets the formulas of a page, which pymdownx.arithmatex writes as \(…\) and \[…\].
for (const element of document.querySelectorAll(".arithmatex")) {
  const text = element.textContent.trim();
  katex.render(text.slice(2, -2), element, { displayMode: text.startsWith("\\["), throwOnError: false });
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tool_texts.sh TOOL MAN SHARE: the installed manual pages and completions are those that the installed tool prints.
set -euo pipefail
tool=$1 man=$2 share=$3

cmp <("$tool" completion bash) "$share/bash-completion/completions/headgate"
cmp <("$tool" completion zsh) "$share/zsh/site-functions/_headgate"
cmp <("$tool" completion fish) "$share/fish/vendor_completions.d/headgate.fish"
"$tool" man --list | while read -r page; do
  verb=${page#headgate}
  cmp <("$tool" man ${verb:+"${verb#-}"}) "$man/man1/$page.1"
done
diff <("$tool" man --list | sort) <(cd "$man/man1" && printf '%s\n' *.1 | sed 's/[.]1$//' | sort)

# cmake -D tool=COMMAND -D to=DIR -P tool_texts.cmake: writes the tool's manual pages and completions to DIR. The tool
# prints them itself.
cmake_policy(VERSION 3.25)
list(REMOVE_ITEM tool "")
file(REMOVE_RECURSE ${to})

function(write_text file)
  execute_process(COMMAND ${tool} ${ARGN} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${to}/${file} "${text}")
endfunction()

write_text(bash-completion/completions/headgate completion bash)
write_text(zsh/site-functions/_headgate completion zsh)
write_text(fish/vendor_completions.d/headgate.fish completion fish)

execute_process(COMMAND ${tool} man --list OUTPUT_VARIABLE pages COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${pages}" pages)
string(REPLACE "\n" ";" pages "${pages}")
foreach(page IN LISTS pages)
  string(REGEX REPLACE "^headgate-?" "" verb ${page})
  write_text(man/man1/${page}.1 man ${verb})
endforeach()

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "models/io/work.hpp"
#include "tool/cli/command_line.hpp"
#include "tool/cli/signals.hpp"
#include "tool/cli/spinning.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::cli {
namespace {

/// Prints an error as one line on stderr and returns kBadUsage.
int report(const std::string& who, std::string_view what) {
  console::say(stderr, fmt::format("{}: {}\n", who, console::terminal_text(what)));
  return kBadUsage;
}

int report_lost_output() { return report("headgate", "cannot write to standard output"); }

std::vector<Verb> add_verbs(CommandLine& line) {
  // --help lists the verbs in this order.
  return {
      add_explain(line), add_attend(line),     add_linear(line),   add_train(line),   add_eval(line),
      add_compare(line), add_xray(line),       add_generate(line), add_convert(line), add_tokenize(line),
      add_verify(line),  add_bench(line),      add_demo(line),     add_info(line),    add_doctor(line),
      add_help(line),    add_completion(line), add_man(line),
  };
}

int run(int argc, char** argv) {
  static std::string who = "headgate";  // static, because the SIGBUS handler keeps a pointer to its text
  try {
    CommandLine line("Exact gated attention on plain CPUs: y = gate(z) * softmax(scale q k^T + bias, mask) v.",
                     "`headgate VERB --help`, or `headgate help VERB`, explains a verb.\n\n"
                     "Environment:\n"
                     "  HEADGATE_ISA       vector target to use (`headgate info` lists them)\n"
                     "  OMP_NUM_THREADS    threads to use where --threads is not given\n\n"
                     "If an option with one value is repeated, the last one counts.");
    const std::vector<Verb> verbs = add_verbs(line);
    const Request request = line.parse(argc, argv);
    if (!request.verb.empty()) who = "headgate " + request.verb;
    report_lost_files(who.c_str());
    if (!request.refusal.empty()) return report(who, request.refusal);
    const auto verb =
        std::find_if(verbs.begin(), verbs.end(), [&](const Verb& each) { return each.name == request.verb; });
    if (verb != verbs.end() && verb->runs_models) spin_less(argv);
    fmt::print("{}", request.text);
    console::ProgressBar bar;
    const io::ReportedWork reported([&bar](std::string_view what, const std::string& path, double done) {
      if (done < 1.0) return bar.show(done, {.text = std::string(what), .path = path});
      bar.clear();
    });
    return verb == verbs.end() ? kSuccess : verb->run();
  } catch (const std::bad_alloc&) {
    return report(who, "not enough memory");
  } catch (const std::system_error& error) {  // fmt::print() throws std::system_error if writing fails
    return std::ferror(stdout) != 0 ? report_lost_output() : report(who, error.what());
  } catch (const std::exception& error) {
    return report(who, error.what());
  } catch (...) {
    return report(who, "unexpected error");
  }
}

}  // namespace
}  // namespace headgate::cli

int main(int argc, char** argv) {
  headgate::cli::remove_unfinished_files_on_signals();
  headgate::cli::report_files_too_large();
  const int status = headgate::cli::run(argc, argv);
  const bool printed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!printed && status != headgate::cli::kBadUsage) {  // kBadUsage means that an error was reported
    return headgate::cli::report_lost_output();
  }
  return status;
}

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/demo_parts.hpp"
#include "cli/demo_story.hpp"
#include "cli/demo_training.hpp"
#include "cli/shell_word.hpp"
#include "cli/threads.hpp"
#include "cli/train_options.hpp"
#include "cli/verbs.hpp"
#include "headgate/runtime.hpp"

namespace headgate::cli {
namespace {

struct DemoArguments {
  std::optional<std::string> examples;
  std::optional<std::string> data;
  std::vector<std::string> include;
  std::string only;
  int threads = 0;

  bool shows(const std::string& part) const { return only.empty() || only == part; }
  bool trains() const { return shows("backcopy") || shows("text"); }
};

/// Where the worked problems were installed, wherever the installed tree has been moved to; in a build folder, a link
/// to those of the sources.
std::filesystem::path find_examples() {
  std::error_code unknown;
  const std::filesystem::path folder = std::filesystem::canonical("/proc/self/exe", unknown).parent_path();
  const std::filesystem::path installed = (folder / HEADGATE_BIN_TO_EXAMPLES).lexically_normal();
  for (const std::filesystem::path& place : {installed, folder / "share/headgate/examples"}) {
    if (has_worked_problems(place)) return std::filesystem::canonical(place);
  }
  throw UsageError(
      fmt::format("the worked problems are not in {}; --examples DIR says where they are", installed.string()));
}

/// Opened before anything is shown: what is wrong with the text is told at once.
std::vector<Story> open_stories(const DemoArguments& arguments, int threads) {
  std::vector<Story> stories;
  if (!arguments.data) return stories;
  train::RunChoices run;
  run.of<&train::TrainSettings::paths>() = {*arguments.data};
  run.of<&train::TrainSettings::include>() = arguments.include;
  run.of<&train::TrainSettings::threads>() = threads;
  if (arguments.shows("backcopy")) {
    train::RunChoices backcopy = run;
    choose_demo_backcopy_run(backcopy);
    stories.push_back(backcopy_story(backcopy, demo_backcopy_sizes()));
  }
  if (arguments.shows("text")) {
    choose_demo_text_run(run);
    stories.push_back(text_story(run, demo_text_sizes()));
  }
  return stories;
}

void print_next(const std::string& data) {
  const std::string tool = shell_word(program_invocation_name);
  const std::string text = shell_word(data);
  fmt::print(
      "\n\nWhat to try next (Ctrl-C saves and says how to go on; {0} VERB --help tells more)\n\n"
      "     {0} train --task bigram-backcopy {2} --data {1} --out backcopy-plain\n"
      "     {0} train --task bigram-backcopy {2} --data {1} --out backcopy-gated --gate headwise\n"
      "     {0} eval backcopy-plain backcopy-gated --data {1}\n\n"
      "     {0} train --data {1} --out text-plain\n"
      "     {0} train --data {1} --out text-gated --gate elementwise --match-params\n"
      "     {0} eval text-plain text-gated --data {1} --held-out --tokens 200000\n",
      tool, text, "--embeddings separate --qk-norm off --seq-len 64 --batch 16");
}

int run_demo(const DemoArguments& arguments) {
  const DemoBudget budget;
  if (arguments.trains() && !arguments.only.empty() && !arguments.data) {
    throw UsageError(fmt::format("--only {} needs --data", arguments.only));
  }
  const int threads = arguments.threads == 0 ? default_threads() : arguments.threads;
  const std::vector<Story> stories = open_stories(arguments, threads);
  if (arguments.shows("worked")) {
    const std::string directory = arguments.examples ? *arguments.examples : find_examples().string();
    if (!show_worked_problems(directory)) return kCheckFailed;
  }
  if (arguments.shows("layer") && !show_layer(threads)) return kCheckFailed;
  if (!stories.empty()) {
    fmt::print("\n\nTraining without a gate and with one, on {} ({} thread{})\n\n", *arguments.data, threads,
               threads == 1 ? "" : "s");
    for (const std::string& what : stories.front().source->left_out().phrases())
      fmt::print("     left out: {}\n", what);
    if (const int status = show_training(stories, budget); status != kSuccess) return status;
    print_next(*arguments.data);
  } else if (arguments.trains()) {
    fmt::print("\n\n--data PATH adds two stories of training: what a gate does to attention sinks, and on a text.\n");
  }
  return kSuccess;
}

}  // namespace

Verb add_demo(CommandLine& line) {
  auto arguments = std::make_shared<DemoArguments>();
  VerbOptions verb = line.add_verb(
      "demo",
      "Show worked problems, a layer of real size, and training\n\n"
      "Solves the four worked problems and holds them against their published outputs; runs gated attention with 16 "
      "heads of 128 over 4096 tokens, causal, in bf16, forward and backward, shows its speed against this machine's "
      "limits and checks sampled rows against the f64 oracle.\n\n"
      "With --data it then trains, in less than four minutes on two cores, writing no files: three models on "
      "bigram-backcopy, a task on which attention without a gate comes to rest on the first token, and three "
      "byte-level language models of equal size on the text; each time without a gate, with a headwise and with an "
      "elementwise one. A slower machine takes fewer steps, and says so.");
  verb.value("--data", arguments->data, "PATH",
             "UTF-8 text to train on: a file, or a directory with all files below it that are UTF-8");
  declare_include(verb, arguments->include);
  verb.value("--only", arguments->only, "PART", "One part alone: worked, layer, backcopy or text")
      .one_of({"worked", "layer", "backcopy", "text"});
  verb.value("--examples", arguments->examples, "DIR",
             "Where the worked problems lie (default: where they were installed)");
  declare_threads(verb, arguments->threads, "Threads (default: what OpenMP offers)");
  verb.footer(
      "Example:\n"
      "  headgate demo --only backcopy --data book.txt");
  return {"demo", [arguments] { return run_demo(*arguments); }};
}

}  // namespace headgate::cli

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/train/evaluation_choices.hpp"
#include "models/train/trainer.hpp"
#include "tool/cli/model_arguments.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/signals.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/train_options.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/terminal_text.hpp"
#include "tool/demo/comparison.hpp"
#include "tool/demo/layer.hpp"
#include "tool/demo/real_model.hpp"
#include "tool/demo/training.hpp"
#include "tool/demo/worked.hpp"

namespace headgate::cli {
namespace {

/// Names of the demo's sections, in the order in which they run.
constexpr std::array kParts{"worked", "layer", "model", "backcopy", "text"};

struct DemoArguments {
  std::optional<std::string> examples;
  std::optional<std::string> data;
  std::string model, out;
  std::vector<std::string> include;
  std::string only, from = kParts.front();
  int threads = 0;

  bool shows(const std::string& part) const {
    return only.empty() ? std::find(kParts.begin(), kParts.end(), part) >= std::find(kParts.begin(), kParts.end(), from)
                        : only == part;
  }
  bool trains() const { return shows("backcopy") || shows("text"); }
  bool reads_text() const { return trains() || (shows("model") && !model.empty()); }
  bool writes_pages() const { return data && (shows("backcopy") || (shows("model") && !model.empty())); }
};

/// Throws UsageError if the user gives an option that no chosen part of the demo uses.
void check_uses(const DemoArguments& arguments) {
  struct Use {
    const char* option;
    bool given, used;
    const char* parts;
  };
  const std::array uses{
      Use{"--examples", arguments.examples.has_value(), arguments.shows("worked"), "worked"},
      Use{"--model", !arguments.model.empty(), arguments.shows("model"), "model"},
      Use{"--data", arguments.data.has_value(), arguments.reads_text(), "model, backcopy and text"},
      Use{"--out", !arguments.out.empty(), arguments.writes_pages(), "model and backcopy, which need --data"}};
  for (const Use& use : uses) {
    if (use.given && !use.used) {
      throw UsageError(fmt::format("{}: none of the parts that are shown uses it, only {}", use.option, use.parts));
    }
  }
}

/// Returns the directory of the worked problems. Looks in two places, relative to the executable:
/// - the directory that an installation creates;
/// - a link in the build folder to the examples of the source tree.
/// Throws UsageError if neither has the problems.
std::filesystem::path find_examples() {
  std::error_code unknown;
  const std::filesystem::path folder = std::filesystem::canonical("/proc/self/exe", unknown).parent_path();
  const std::filesystem::path installed = (folder / HEADGATE_BIN_TO_EXAMPLES).lexically_normal();
  for (const std::filesystem::path& place : {installed, folder / "share/headgate/examples"}) {
    if (demo::has_worked_problems(place)) return std::filesystem::canonical(place);
  }
  throw UsageError(
      fmt::format("the worked problems are not in {}; --examples DIR says where they are", installed.string()));
}

demo::XrayRequest xray_wanted(const DemoArguments& arguments, int threads) {
  return {.text = *arguments.data, .include = arguments.include, .directory = arguments.out, .threads = threads};
}

/// Prepares the training comparisons and opens the text on which the models train.
/// Called before the first output, so that the demo fails at once if the text is unreadable.
std::vector<demo::Comparison> open_comparisons(const DemoArguments& arguments, int threads) {
  std::vector<demo::Comparison> comparisons;
  if (!arguments.data) return comparisons;
  const auto on_data = [&](train::TrainSettings settings) {
    settings.paths = {*arguments.data};
    settings.include = arguments.include;
    settings.threads = threads;
    return settings;
  };
  if (arguments.shows("backcopy")) {
    comparisons.push_back(
        demo::compare_on_backcopy(demo::demo_backcopy_model(), on_data(demo::demo_backcopy_settings())));
  }
  if (arguments.shows("text")) {
    comparisons.push_back(demo::compare_on_text(demo::demo_text_model(), on_data(demo::demo_text_settings())));
  }
  return comparisons;
}

int train(const std::vector<demo::Comparison>& comparisons, const DemoArguments& arguments, int threads) {
  fmt::print("\n\nTraining without a gate and with one, on {} ({} thread{})\n\n",
             console::terminal_text(*arguments.data), threads, threads == 1 ? "" : "s");
  for (const std::string& what : comparisons.front().sources.front()->left_out().phrases()) {
    fmt::print("     left out: {}\n", console::terminal_text(what));
  }
  const SignalWatch watch;
  try {
    for (const demo::Comparison& comparison : comparisons) {
      const auto trained = demo::show_training(comparison, [] { return SignalWatch::received() != 0; });
      if (trained.empty()) {
        fmt::print(stderr, "headgate demo: interrupted\n");
        return kSignalStatus + SignalWatch::received();
      }
      if (comparison.sources.front()->has_triggers()) {
        demo::show_trained_models(trained, comparison.settings, xray_wanted(arguments, threads));
      }
    }
  } catch (const train::Diverged& error) {
    fmt::print(stderr, "headgate demo: the training diverged: {}\n", error.what());
    return kCheckFailed;
  }
  fmt::print("{}", demo::commands_to_try(program_invocation_name, *arguments.data));
  return kSuccess;
}

int run_demo(const DemoArguments& arguments) {
  if (arguments.trains() && !arguments.only.empty() && !arguments.data) {
    throw UsageError(fmt::format("--only {} needs --data", arguments.only));
  }
  if (!arguments.model.empty() && !arguments.data) throw UsageError("--model needs --data: its X-ray is of a text");
  if (arguments.only == "model" && arguments.model.empty()) throw UsageError("--only model needs --model");
  check_uses(arguments);
  if (arguments.data) check_include("--data", {*arguments.data}, arguments.include);
  if (!arguments.model.empty()) train::model_path(arguments.model);  // throws at once if the model does not exist
  std::string examples;
  if (arguments.shows("worked")) {
    examples = arguments.examples ? *arguments.examples : find_examples().string();
    demo::check_worked_problems(examples);  // checks the files before the demo prints anything
  }
  const int threads = arguments.threads == 0 ? default_threads() : arguments.threads;
  const std::vector<demo::Comparison> comparisons = open_comparisons(arguments, threads);
  if (arguments.data) {
    std::vector<io::NamedPath> pages;
    for (const std::string& page : demo::page_paths(arguments.out)) pages.push_back({"--out", page});
    check_overwrites(pages, [&arguments](InputFiles& inputs) {
      if (!arguments.model.empty()) inputs.add_models("--model", {arguments.model});
      inputs.add_text("--data", {*arguments.data}, {.include = arguments.include, .run = {}});
    });
    demo::prepare_pages(xray_wanted(arguments, threads));
  }
  if (arguments.shows("worked") && !demo::show_worked_problems(examples)) return kCheckFailed;
  if (arguments.shows("layer") && !demo::show_layer(threads)) return kCheckFailed;
  if (arguments.shows("model") && !arguments.model.empty()) {
    demo::show_real_model(arguments.model, xray_wanted(arguments, threads));
  }
  if (!comparisons.empty()) return train(comparisons, arguments, threads);
  if (arguments.trains()) {
    fmt::print("\n\n--data PATH adds two trainings: one on attention sinks, one on a text.\n");
  }
  return kSuccess;
}

}  // namespace

Verb add_demo(CommandLine& line) {
  auto arguments = std::make_shared<DemoArguments>();
  VerbOptions verb = line.add_verb(
      "demo",
      "Show worked problems, a layer of real size, and training\n\n"
      "Solves the four worked problems and compares them with their published outputs; runs gated attention with 16 "
      "heads of 128 over 4096 tokens, causal, in bf16, forward and backward, shows its speed against this machine's "
      "limits and checks sampled rows against the f64 oracle.\n\n"
      "With --model it shows the X-ray of a model that others trained (`headgate xray`). With --data it then trains "
      "three seeds of three models on bigram-backcopy, a task on which attention without a gate goes to the first "
      "token, shows their X-ray, and trains three byte-level language models of equal size on the text: without a "
      "gate, with a headwise and with an elementwise one, a run a thread. All of it takes about four minutes on two "
      "cores. Files are written to --out alone.");
  verb.value("--data", arguments->data, "PATH",
             "UTF-8 text to train on: a file, or a directory with all files below it that are UTF-8");
  declare_include(verb, arguments->include).needs(verb.declared("--data"));
  verb.value("--model", arguments->model, "MODEL",
             "Show the X-ray of this model on the text, as `headgate xray` reads it");
  verb.value("--out", arguments->out, "DIR", "Write the X-rays' pages to DIR");
  const std::vector<std::string> parts(kParts.begin(), kParts.end());
  Option only =
      verb.value("--only", arguments->only, "PART", fmt::format("Show only one part: {}", fmt::join(parts, ", ")));
  only.one_of(parts);
  verb.value("--from", arguments->from, "PART", "Begin with this part").one_of(parts).excludes(only);
  verb.value("--examples", arguments->examples, "DIR", "Directory of the worked problems (default: the installed one)");
  declare_threads(verb, arguments->threads, "Threads (default: what OpenMP offers)");
  verb.footer(
      "Example:\n"
      "  headgate demo --only backcopy --data book.txt");
  return {"demo", [arguments] { return run_demo(*arguments); }, /*runs_models=*/true};
}

}  // namespace headgate::cli

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "library/core/dtype_words.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "tool/attend/linear.hpp"
#include "tool/cli/enum_option.hpp"
#include "tool/cli/operation_options.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/verbs.hpp"

namespace headgate::cli {
namespace {

struct LinearOptions {
  attend::LinearFiles files;
  Given<kLinearOptions> given;
  std::optional<DType> dtype;
  bool json = false;
};

int run_linear(const LinearOptions& o) {
  LinearAttentionOptions options;
  o.given.put_into(options);
  attend::check_outputs(o.files);
  const auto compute = [&](const attend::LinearArrays& arrays, const attend::OnStage& on_stage) {
    return attend::compute(o.files, arrays, options, on_stage);
  };
  const auto written = run_operation(o.files, o.dtype, compute);
  if (o.json) print_written(written);
  return kSuccess;
}

void add_options(VerbOptions& verb, LinearOptions& o) {
  verb.group("Operation");
  add_rows<LinearAttentionOptions>(verb, o.given, [](const auto&, const Option&) {});
  add_execution(verb, o.given, o.dtype, "q, k, v and grad-out", "A decay or beta of another dtype is read as float32");
}

void add_figures(VerbOptions& verb, attend::LinearFigureFiles& figures) {
  verb.group("Statistics");
  std::string names;
  for (const LinearStatisticsOutput& row : kLinearStatistics) {
    if (row.dims == LinearOutputDims::sequence) continue;
    names += fmt::format("{}{}.npy {}: {}", names.empty() ? "" : "; ", row.name, array_letters(row.dims), row.help);
  }
  Option stats = verb.value("--stats", figures.directory, "DIR",
                            "Where to write figures of the weights a_tj that y has of v, which are exact and may be "
                            "negative: " +
                                names + ". f64 if q is, f32 otherwise. Made if missing (its parent is not)");
  verb.word(
          "--weights", [&figures](const std::string& text) { figures.queries = parse_indices("--weights", text); },
          "I,J,...",
          "weights.npy (B,Ho,R,T) too: all weights of queries I, J, ..., rows of q in a packed batch; and "
          "state_query.npy (B,Ho,R,D), what is left of those queries, with which the initial state is read")
      .needs(stats);
}

}  // namespace

Verb add_linear(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "linear",
      "Gated linear attention over .npy files, and its gradients\n\n"
      "Computes the recurrence of Gated DeltaNet. Each head of v has a state S (D,Dv). For one token after the other, "
      "S <- e^g S + beta k (v - (e^g S)^T k)^T, and y = scale S^T q. Other rules leave out the decay e^g, the "
      "difference, or both.\n\n"
      "Arrays are of rank 4 (B,H,T,D), rank 3 (H,T,D) or rank 2 (T,D); q, k, v, decay, beta and grad-out are of one "
      "rank, which y has too. States are of rank 4. B batch, T tokens, Hq, Hk and Hv heads of q, k and v, Ho the "
      "larger of Hq and Hv, D and Dv head dims from 1 to 256, N sequences: those of a packed batch, else B.\n\n"
      "Files are .npy 1.0 to 3.0, C or Fortran order, little-endian f2, f4, f8 (bounds of sequences i4 or i8). " +
          text(kFilesHelp),
      "--quiet");
  auto options = std::make_shared<LinearOptions>();
  add_inputs(verb, options->files);
  add_outputs(verb, options->files);
  add_gradients(verb, options->files, "dstate is that of S_0");
  add_figures(verb, options->files.figures);
  add_options(verb, *options);
  declare_written_json(verb, options->json);
  verb.footer(text(kEnvironmentHelp) +
              "Examples:\n"
              "  headgate linear --q q.npy --k k.npy --v v.npy --decay g.npy --beta beta.npy \\\n"
              "    --l2-norm 1e-6 --out y.npy --out-state s.npy\n"
              "  headgate linear --q q.npy --k k.npy --v v.npy --rule linear --out y.npy \\\n"
              "    --grad-out dy.npy --grad-dir gradients\n"
              "  headgate linear --q q.npy --k k.npy --v v.npy --beta beta.npy --out y.npy \\\n"
              "    --stats stats --weights 0,63");
  return {"linear", [options] { return run_linear(*options); }};
}

}  // namespace headgate::cli

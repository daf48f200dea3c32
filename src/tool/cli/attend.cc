// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/dtype_words.hpp"
#include "library/core/gate_functions.hpp"
#include "tool/attend/job.hpp"
#include "tool/cli/enum_option.hpp"
#include "tool/cli/operation_options.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/verbs.hpp"

namespace headgate::cli {
namespace {

struct AttendOptions {
  attend::Files files;
  Given<kAttentionOptions> given;
  std::optional<DType> dtype;
  bool off_by_one = false;
  bool json = false;
};

/// Parses the value of --window, "L,R": the left and the right limit of the sliding window.
std::pair<std::int64_t, std::int64_t> parse_window(const std::string& text) {
  std::pair<std::int64_t, std::int64_t> window;
  const char* end = text.data() + text.size();
  auto part = std::from_chars(text.data(), end, window.first);
  if (part.ec == std::errc{} && part.ptr != end && *part.ptr == ',') {
    part = std::from_chars(part.ptr + 1, end, window.second);
    if (part.ec == std::errc{} && part.ptr == end) return window;
  }
  throw Error(fmt::format("--window is '{}' but must be two whole numbers, L,R", text));
}

int run_attend(AttendOptions o) {
  AttentionOptions options;
  o.given.put_into(options);
  const auto& gate_fn = o.given.of<&AttentionOptions::gate_fn>();
  if (gate_fn && !o.files.has_gate() && *gate_fn != GateFn::none) {
    throw UsageError(fmt::format("--gate-fn {} needs --gate", word_of(*gate_fn)));
  }
  attend::Statistics& statistics = o.files.statistics;
  statistics.gated = o.files.has_gate() && options.gate_fn != GateFn::none && options.gate_op == GateOp::mul;

  attend::check_outputs(o.files);
  const auto compute = [&](const attend::Arrays& arrays, const attend::OnStage& on_stage) {
    return attend::compute(o.files, arrays, options, o.off_by_one, on_stage);
  };
  const auto written = run_operation(o.files, o.dtype, compute);
  if (o.json) print_written(written);
  return kSuccess;
}

void add_statistics(VerbOptions& verb, attend::Files& files) {
  verb.group("Statistics");
  Option stats =
      verb.value("--stats", files.statistics.directory, "DIR",
                 "Where to write statistics of the softmax weights: row_max.npy (the largest of each row), "
                 "entropy.npy (nats, a sink included), first.npy (on key 0), all (B,Hq,T); key_mass.npy (B,Hq,S), "
                 "what each key receives; first_gated.npy, first times the mean of the row's gates, with a gate "
                 "that multiplies. Of a packed batch (1,Hq,T) and (1,Hq,S), over the rows of q and k; key_mass.npy "
                 "(N,Hq,S) with a block table. f64 if q is, f32 "
                 "otherwise. Made if missing (its parent is not)");
  verb.value("--top-k", files.statistics.top_keys, "K",
             "topk_index.npy (int64) and topk_weight.npy (B,Hq,T,K) too: the keys of the K largest scores, of equal "
             "ones the lower first, counted within the query's sequence; -1 where fewer have a weight")
      .range<std::int64_t>(1, kMaxTopKeys)
      .needs(stats);
  verb.value("--window-share", files.statistics.window, "W",
             "window_share.npy (B,Hq,T) too: the weight on keys j with |at_i - j| <= W")
      .range<std::int64_t>(0, std::numeric_limits<std::int64_t>::max())
      .needs(stats);
  verb.word(
          "--rows", [&files](const std::string& text) { files.statistics.queries = parse_indices("--rows", text); },
          "I,J,...",
          "rows.npy (B,Hq,R,S) too: all weights of queries I, J, ...; of a "
          "packed batch rows I, J, ... of q, 0 at keys of other sequences")
      .needs(stats);
}

void add_options(VerbOptions& verb, AttendOptions& o) {
  verb.group("Operation");
  add_rows<AttentionOptions>(verb, o.given, [&verb](const auto& row, Option& option) {
    using Value = typename std::remove_cvref_t<decltype(row)>::Value;
    // Makes the options of the gate require --gate.
    // Exempts --gate-fn, because "--gate-fn none" needs no gate. run_attend() checks --gate-fn.
    if (row.part == OptionOf::gate && !std::is_same_v<Value, GateFn>) option.needs(verb.declared("--gate"));
    if (row.forward_only) option.excludes(verb.declared("--grad-out"));
  });
  const auto set_causal = [&o] { o.given.of<&AttentionOptions::causality>() = Causality::causal; };
  verb.flag("--causal", set_causal, "Query i sees key j only if j <= at_i");
  const auto set_window = [&o](const std::string& given) {
    std::tie(o.given.of<&AttentionOptions::window_left>(), o.given.of<&AttentionOptions::window_right>()) =
        parse_window(given);
  };
  verb.word(
      "--window", set_window, "L,R",
      "Query i sees key j only if at_i - L <= j <= at_i + R; -1 for no limit. Below -1 the window lies beside the "
      "query: 9,-3 is at_i - 9 to at_i - 3");
  verb.flag("--off-by-one", o.off_by_one, "A sink logit of 0 for every head: the softmax denominator plus one")
      .excludes(verb.declared("--sinks"));
  add_execution(verb, o.given, o.dtype, "q, k, v, gate and grad-out",
                "A gate may also be float32, and a bias of another dtype is read as float32");
}

}  // namespace

Verb add_attend(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "attend",
      "Gated attention over .npy files, and its gradients\n\n"
      "Computes y = gate(z) * softmax(scale q k^T + bias, mask) v for arrays of rank 4 (B,H,T,D), rank 3 (H,T,D) or "
      "rank 2 (T,D); q, k, v, gate and grad-out are of one rank, and outputs have the rank of q. B batch, Hq query "
      "heads, Hkv key and value heads, T queries, S keys, D and Dv head dims from 1 to 576.\n\n"
      "Query i stands at key position at_i = i + S - T, so that the last query stands at the last key, unless "
      "--query-offsets says otherwise.\n\n"
      "Files are .npy 1.0 to 3.0, C or Fortran order, little-endian f2, f4, f8 (masks b1; key lengths, query offsets "
      "and bounds of sequences i4 or i8; block tables i4; k and v of a cache i1 too). " +
          text(kFilesHelp),
      "--quiet");
  auto options = std::make_shared<AttendOptions>();
  add_inputs(verb, options->files);
  add_outputs(verb, options->files);
  add_statistics(verb, options->files);
  add_gradients(verb, options->files, "dz is that of the gate");
  add_options(verb, *options);
  declare_written_json(verb, options->json);
  verb.footer(text(kEnvironmentHelp) +
              "Examples:\n"
              "  headgate attend --q q.npy --k k.npy --v v.npy --gate z.npy --causal --out y.npy\n"
              "  headgate attend --q q.npy --k k.npy --v v.npy --out y.npy \\\n"
              "    --grad-out dy.npy --grad-dir gradients --dtype bf16\n"
              "  headgate attend --q q.npy --k k.npy --v v.npy --causal --out y.npy \\\n"
              "    --stats statistics --top-k 8 --window-share 64 --rows 0,100");
  return {"attend", [options] { return run_attend(*options); }};
}

}  // namespace headgate::cli

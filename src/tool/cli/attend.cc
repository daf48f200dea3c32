// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "library/core/dtype_words.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/precision_words.hpp"
#include "tool/attend/job.hpp"
#include "tool/cli/enum_option.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/verbs.hpp"

namespace headgate::cli {
namespace {

struct Options {
  attend::Files files;
  std::optional<GateFn> gate_fn;
  GateOp gate_op = GateOp::mul;
  std::pair<std::int64_t, std::int64_t> window{AttentionOptions{}.window_left, AttentionOptions{}.window_right};
  std::optional<DType> dtype;
  Precision precision = Precision::exact;
  std::optional<double> scale;
  double softcap = 0.0;
  bool causal = false;
  bool off_by_one = false;
  int threads = 0;
  double gate_threshold = 0.0;
};

/// "L,R".
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

/// "I,J,…".
std::vector<std::int64_t> parse_rows(const std::string& text) {
  std::vector<std::int64_t> rows;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at <= end; ++at) {
    const auto part = std::from_chars(at, end, rows.emplace_back());
    at = part.ptr;
    if (part.ec != std::errc{} || (at != end && *at != ',')) {
      throw Error(fmt::format("--rows is '{}' but must be whole numbers, I,J,...", text));
    }
  }
  return rows;
}

int run_attend(Options o) {
  AttentionOptions options;
  options.scale = o.scale;
  options.softcap = o.softcap;
  options.causality = o.causal ? Causality::causal : Causality::none;
  std::tie(options.window_left, options.window_right) = o.window;
  options.gate_fn = o.gate_fn.value_or(options.gate_fn);
  if (o.gate_fn && o.files.gate.empty() && options.gate_fn != GateFn::none) {
    throw UsageError(fmt::format("--gate-fn {} needs --gate", word_of(*o.gate_fn)));
  }
  options.gate_op = o.gate_op;
  options.gate_threshold = o.gate_threshold;
  options.precision = o.precision;
  options.context.threads = o.threads;

  attend::Statistics& statistics = o.files.statistics;
  statistics.gated = !o.files.gate.empty() && options.gate_fn != GateFn::none && options.gate_op == GateOp::mul;

  attend::check_outputs(o.files);
  const attend::Arrays arrays = attend::read_inputs(o.files, o.dtype);
  attend::write_outputs(o.files, attend::compute(o.files, arrays, options, o.off_by_one));
  return kSuccess;
}

void add_files(VerbOptions& verb, attend::Files& files) {
  const auto file = [&verb](const char* group, const char* name, std::string& path, const char* text,
                            const std::string& shape) {
    verb.group(group);
    return verb.value(name, path, text, shape);
  };
  file("Inputs", "--q", files.q, "Q.npy", "Queries (B,Hq,T,D)").required();
  file("Inputs", "--k", files.k, "K.npy", "Keys (B,Hkv,S,D); Hq is a multiple of Hkv").required();
  file("Inputs", "--v", files.v, "V.npy", "Values (B,Hkv,S,Dv)").required();
  file("Inputs", "--gate", files.gate, "Z.npy",
       "Raw gate logits, (B,Hq,T,1) headwise or (B,Hq,T,Dv) elementwise; without it, y = o");
  file("Inputs", "--bias", files.bias, "B.npy",
       "Added to the scores: (T,S), (Hq,T,S) or (B,Hq,T,S), each dimension but S full or 1; -inf hides the key. Any of "
       "f16, f32, f64; read as f32 unless it has the dtype of q");
  file("Inputs", "--mask", files.mask, "M.npy", "Boolean, true = visible; shaped as a bias");
  file("Inputs", "--key-lengths", files.key_lengths, "N.npy", "(B), int32 or int64: batch b sees its first N[b] keys");
  file("Inputs", "--query-offsets", files.query_offsets, "A.npy",
       "(B), int32 or int64: query i of batch b stands at key position at_i = A[b] + i (default i + S - T)");
  const Option cu_seqlens_q =
      file("Inputs", "--cu-seqlens-q", files.cu_seqlens_q, "CQ.npy",
           "(N+1), int32 or int64: a packed batch. B is 1, and the queries of sequence n are rows CQ[n] to CQ[n+1] of "
           "those of q; CQ[0] = 0, CQ[N] = T. Key lengths, query offsets and rows of a block table are then N. Needs "
           "--cu-seqlens-k or --block-table");
  Option cu_seqlens_k = file("Inputs", "--cu-seqlens-k", files.cu_seqlens_k, "CK.npy",
                             "(N+1), int32 or int64: its keys are rows CK[n] to CK[n+1] of those of k and v; S_n of "
                             "them and T_n queries stand for S and T in the default position");
  cu_seqlens_k.needs(cu_seqlens_q);
  file("Inputs", "--alibi", files.alibi, "A.npy", "ALiBi slopes (Hq): slope * |at_i - j| is taken off the scores");
  file("Inputs", "--sinks", files.sinks, "S.npy",
       "Sink logits (Hq): they join the softmax denominator without a value");
  file("Inputs", "--block-table", files.block_table, "E.npy",
       "(B,M), int32: k and v are P pages (P,Hkv,page,D) and (P,Hkv,page,Dv), and key j of batch b is row j % page of "
       "page E[b,j/page]; S = M * page. Without gradients; needs --key-lengths. (N,M) with --cu-seqlens-q: the last "
       "query of a sequence then stands at its last key, unless query offsets say otherwise")
      .needs(verb.declared("--key-lengths"));
  Option k_scale = file("Inputs", "--k-scale", files.k_scale, "KS.npy",
                        "Scales of k in int8, (B,Hkv,S,1) or of pages (P,Hkv,page,1): key j is k[j] * KS[j]. Without "
                        "gradients");
  Option v_scale = file("Inputs", "--v-scale", files.v_scale, "VS.npy", "Scales of v in int8, as those of k");
  k_scale.needs(v_scale);
  v_scale.needs(k_scale);
  file("Outputs", "--out", files.out, "Y.npy", "The result (B,Hq,T,Dv), in the dtype of q").required();
  file("Outputs", "--lse", files.lse, "LSE.npy",
       "Log-sum-exp of each row's scores (B,Hq,T), natural logarithm, sink "
       "included; f64 if q is, f32 otherwise");
  file("Outputs", "--weights", files.weights, "P.npy", "Softmax weights (B,Hq,T,S), in the dtype of q");
  Option stats =
      file("Statistics", "--stats", files.statistics.directory, "DIR",
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
          "--rows", [&files](const std::string& text) { files.statistics.queries = parse_rows(text); }, "I,J,...",
          "rows.npy (B,Hq,R,S) too: all weights of queries I, J, ...; of a "
          "packed batch rows I, J, ... of q, 0 at keys of other sequences")
      .needs(stats);
  Option grad_out =
      file("Gradients", "--grad-out", files.grad_out, "DY.npy", "Incoming gradient of the result (B,Hq,T,Dv)");
  Option grad_dir = file("Gradients", "--grad-dir", files.grad_dir, "DIR",
                         "Where to write dq.npy, dk.npy, "
                         "dv.npy, and dz.npy, dbias.npy, dsinks.npy with a gate, bias, sinks; each in the shape "
                         "and dtype that its input is computed in. "
                         "Made if missing (its parent is not)");
  grad_out.needs(grad_dir);
  grad_dir.needs(grad_out);
}

void add_options(VerbOptions& verb, Options& o) {
  verb.group("Operation");
  declare_enum<GateFn>(verb, "--gate-fn", o.gate_fn, "FN",
                       list_words<GateFn>() + " (default sigmoid); needs --gate unless none");
  declare_enum<GateOp>(verb, "--gate-op", o.gate_op, "OP", "mul: y = o * g(z) (default); add: y = o + g(z)")
      .needs(verb.declared("--gate"));
  verb.value(
          "--gate-threshold", o.gate_threshold, "T",
          "Rows whose gate is at most T in every feature, |g(z)| <= T, are not computed: y = 0 there, lse = inf, and "
          "y is off by at most T * max |v|. 0: all are (default). Needs --gate, multiplied, and no gradients")
      .needs(verb.declared("--gate"))
      .excludes(verb.declared("--grad-out"));
  verb.flag("--causal", o.causal, "Query i sees key j only if j <= at_i");
  verb.word(
      "--window", [&o](const std::string& text) { o.window = parse_window(text); }, "L,R",
      "Query i sees key j only if at_i - L <= j <= at_i + R; -1 for no limit");
  verb.value("--scale", o.scale, "X", "Factor of q k^T (default 1/sqrt(D))");
  verb.value("--softcap", o.softcap, "C", "Scores become C * tanh(score / C); 0 for no cap (default)");
  verb.flag("--off-by-one", o.off_by_one, "A sink logit of 0 for every head: the softmax denominator plus one")
      .excludes(verb.declared("--sinks"));
  declare_enum<DType>(
      verb, "--dtype", o.dtype, "TYPE",
      "Compute in one of " + list_words<DType>() +
          ": q, k, v, gate and grad-out are converted to it, and may then differ among themselves. Without it "
          "they must share one dtype");
  declare_enum<Precision>(
      verb, "--precision", o.precision, "P",
      "exact: products of f32 numbers (default); native16: of bf16 numbers with f32 sums, in the instructions "
      "that `headgate info` names, as exact where it names none. Needs --dtype bf16");
  declare_threads(verb, o.threads, "Threads (default: all cores); the result has the same bits for every number");
}

}  // namespace

Verb add_attend(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "attend",
      "Gated attention over .npy files, and its gradients\n\n"
      "Computes y = gate(z) * softmax(scale q k^T + bias, mask) v for arrays of rank 4 (B,H,T,D), rank 3 (H,T,D) or "
      "rank 2 (T,D); q, k, v, gate and grad-out are of one rank, and outputs have the rank of q. B batch, Hq query "
      "heads, Hkv key and value heads, T queries, S keys, D and Dv head dims from 1 to 512.\n\n"
      "Query i stands at key position at_i = i + S - T, so that the last query stands at the last key, unless "
      "--query-offsets says otherwise.\n\n"
      "Files are .npy 1.0 to 3.0, C or Fortran order, little-endian f2, f4, f8 (masks b1; key lengths, query offsets "
      "and bounds of sequences i4 or i8; block tables i4; k and v of a cache i1 too). NumPy "
      "has no bf16: with --dtype bf16, files are read as f2, f4 or f8 and rounded, and results are written as f4. "
      "Every output file appears whole, after all of them have been computed, or not at all.");
  auto options = std::make_shared<Options>();
  add_files(verb, options->files);
  add_options(verb, *options);
  verb.footer(
      "Environment:\n"
      "  HEADGATE_ISA     vector target to use (`headgate info` lists them)\n"
      "  OMP_NUM_THREADS  threads to use where --threads is not given\n"
      "\n"
      "Examples:\n"
      "  headgate attend --q q.npy --k k.npy --v v.npy --gate z.npy --causal --out y.npy\n"
      "  headgate attend --q q.npy --k k.npy --v v.npy --out y.npy \\\n"
      "    --grad-out dy.npy --grad-dir gradients --dtype bf16\n"
      "  headgate attend --q q.npy --k k.npy --v v.npy --causal --out y.npy \\\n"
      "    --stats statistics --top-k 8 --window-share 64 --rows 0,100");
  return {"attend", [options] { return run_attend(*options); }};
}

}  // namespace headgate::cli

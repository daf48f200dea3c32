// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/element.hpp"
#include "library/core/gate_functions.hpp"
#include "models/io/npy.hpp"
#include "models/io/scratch.hpp"
#include "tool/cli/attend_files.hpp"
#include "tool/cli/tool.hpp"
#include "verify/case.hpp"
#include "verify/check.hpp"

namespace headgate {
namespace {

namespace fs = std::filesystem;
using headgate::testing::expect_refused;
using headgate::testing::headgate_path;
using headgate::testing::kernels_by_command;
using headgate::testing::Order;
using headgate::testing::Outcome;
using headgate::testing::read_bytes;
using headgate::testing::run_program;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;
using headgate::testing::write_npy;

/// Restricts a spec to what the command line can express: the log-sum-exp in f64, without its gradient; a gate in q's
/// dtype beside --dtype, which bf16 needs; max_logit for each head.
verify::CaseSpec sayable(verify::CaseSpec spec) {
  spec.lse = DType::f64;
  spec.dlse = DType::none;
  if (spec.dtype == DType::bf16) spec.gate_f32 = false;
  spec.attn = false;
  const DType real = spec.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (spec.max_logit != DType::none) spec.max_logit = real;
  spec.max_logit_by_head = spec.max_logit != DType::none;
  spec.statistics = {};
  spec.statistics.dtype = real;
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    const StatisticsOutput& output = kStatisticsOutputs[n];
    const bool mean = output.third == StatisticsDim::one && output.fourth != StatisticsDim::keys;
    if (mean || output.fourth == StatisticsDim::chosen_keys) spec.statistics.absent |= 1U << n;
  }
  return spec;
}

/// Writes files, runs the command, and compares the files that it writes with the oracle by the library's tolerance
/// rule.
void expect_right(const verify::CaseSpec& spec, Order order) {
  const Scratch scratch;
  verify::Case problem(sayable(spec));
  const verify::Kernels command = kernels_by_command(scratch.path(), order);
  EXPECT_EQ(check_forward_case(problem, command), std::nullopt);
  if (problem.statistics().topk_index.strides == contiguous_strides(problem.statistics().topk_index.shape)) {
    EXPECT_EQ(check_statistics_case(problem, command), std::nullopt);
  }
  if (spec.forward_only()) return;
  EXPECT_EQ(check_backward_case(problem, command), std::nullopt);
}

TEST(AttendAgainstOracle, Outputs_EachFeatureAlone_MatchTheOracle) {
  verify::CaseSpec plain;
  plain.B = 2;
  plain.Hkv = 2;
  plain.group = 2;
  plain.T = 9;
  plain.S = 13;
  plain.D = 8;
  plain.Dv = 6;
  const std::vector<std::function<void(verify::CaseSpec&)>> features = {
      [](auto&) {},
      [](auto& s) { s.causality = Causality::causal; },
      [](auto& s) { s.window_left = 3, s.window_right = 1; },
      [](auto& s) { s.scale = -0.25; },
      [](auto& s) { s.softcap = 1.5; },
      [](auto& s) {
        s.bias = {true, true, true, true}, s.bias_hides = true;
      },
      [](auto& s) {
        s.bias = {true, false, true, false};
      },
      [](auto& s) {
        s.mask = {true, true, false, true};
      },
      [](auto& s) { s.key_indices = DType::i32, s.list_entries = 5, s.lists_by_head = true; },
      [](auto& s) { s.key_indices = DType::i64, s.list_entries = 3, s.key_block_size = 4, s.weights = true; },
      [](auto& s) { s.key_lengths = DType::i32; },
      [](auto& s) { s.key_lengths = DType::i64; },
      [](auto& s) { s.query_offsets = DType::i32, s.causality = Causality::causal; },
      [](auto& s) { s.query_offsets = DType::i64, s.alibi_slopes = DType::f32; },
      [](auto& s) { s.B = 1, s.cu_seqlens = DType::i32, s.packed = 3, s.causality = Causality::causal; },
      [](auto& s) { s.B = 1, s.cu_seqlens = DType::i64, s.packed = 4, s.weights = true; },
      [](auto& s) { s.alibi_slopes = DType::f32; },
      [](auto& s) { s.alibi_slopes = DType::f64, s.alibi_by_sequence = true; },
      [](auto& s) { s.window_left = 6, s.window_right = -2; },
      [](auto& s) { s.dropout = 0.3, s.dropout_seed = -5, s.weights = true; },
      [](auto& s) { s.sinks = DType::f64; },
      [](auto& s) { s.sinks = DType::f32, s.sinks_by_query = true; },
      [](auto& s) { s.sinks = DType::f64, s.sinks_by_query = s.sinks_by_batch = true; },
      [](auto& s) { s.weights = true; },
      [](auto& s) { s.quantized = true; },
      [](auto& s) { s.quantized = true, s.first_rows = DType::f32, s.first = 3; },
      [](auto& s) { s.S = 15, s.page = 3, s.key_lengths = DType::i32, s.weights = true; },
      [](auto& s) { s.S = 16, s.page = 4, s.key_lengths = DType::i64, s.quantized = true, s.B = 1; },
      [](auto& s) {
        s.B = 1, s.S = 15, s.page = 3, s.key_lengths = DType::i32, s.cu_seqlens = DType::i32, s.packed = 3;
      },
      [](auto& s) { s.gate_input = verify::GateInput::headwise; },
      [](auto& s) { s.gate_input = verify::GateInput::elementwise, s.gate_op = GateOp::add; },
      [](auto& s) { s.gate_input = verify::GateInput::headwise, s.closed_share = 0.5; },
      [](auto& s) { s.gate_input = verify::GateInput::elementwise, s.closed_share = 0.3, s.weights = true; },
      [](auto& s) { s.B = 1; },
      [](auto& s) { s.B = s.Hkv = s.group = 1; },
  };
  std::size_t n = 0;
  for (const auto& feature : features) {
    verify::CaseSpec spec = plain;
    feature(spec);
    expect_right(spec, n++ % 2 == 0 ? Order::c : Order::fortran);
  }
}

TEST(AttendAgainstOracle, Outputs_EveryGateFunction_MatchTheOracle) {
  for (const auto& [fn, word] : Words<GateFn>::kAll) {
    verify::CaseSpec spec;
    spec.Hkv = 2;
    spec.T = 5;
    spec.S = 7;
    spec.D = 4;
    spec.Dv = 3;
    spec.gate_input = verify::GateInput::elementwise;
    spec.gate_fn = fn;
    expect_right(spec, Order::c);
  }
}

TEST(AttendAgainstOracle, Outputs_RandomCombinations_MatchTheOracle) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    expect_right(verify::random_spec(seed), seed % 2 == 0 ? Order::c : Order::fortran);
  }
}

/// Writes a small problem's files, and runs commands on them.
class AttendTest : public ::testing::Test {
 protected:
  AttendTest() {
    fs::create_directory(out_dir);
    put("q", {kB, kHq, kT, kD});
    put("k", {kB, kHkv, kS, kD});
    put("v", {kB, kHkv, kS, kDv});
    put("z", {kB, kHq, kT, kDv});
    put("dy", {kB, kHq, kT, kDv});
    put("bias", {1, 1, kT, kS});
    put("sinks", {1, 1, 1, kHq}, DType::f32, 1);
  }

  /// Writes normal numbers, seeded by name: the same in every dtype and order.
  void put(const std::string& name, const Shape& shape, DType dtype = DType::f32, std::size_t rank = 4,
           Order order = Order::c, const std::string& values_of = "") const {
    io::Array array = io::make_array(dtype, {shape.begin(), shape.end()});
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(values_of.empty() ? name : values_of)));
    std::uniform_int_distribution<int> digits(-64, 64);  // exact in every dtype
    for (std::int64_t i = 0; i < array.numel(); ++i) {
      store_element(array.data.get(), dtype, i, static_cast<double>(digits(random)) / 32);
    }
    write_npy(in(name), {array.data.get(), dtype, shape, contiguous_strides(shape)}, rank, order);
  }

  /// Writes integers or booleans, a vector or a (T,S) map.
  template <typename T>
  void put_values(const std::string& name, const std::vector<T>& values, const Shape& shape, std::size_t rank) const {
    write_npy(in(name), make_view(values.data(), shape), rank);
  }

  std::string in(const std::string& name) const { return scratch / name + ".npy"; }
  std::string out(const std::string& name) const { return out_dir + "/" + name; }

  std::vector<std::string> command(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"attend", "--q", in("q"), "--k", in("k"), "--v", in("v"), "--out", out("y.npy")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// Returns the bytes of the result.
  std::string result(const std::vector<std::string>& more = {}) const {
    const Outcome outcome = testing::headgate(command(more));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out + outcome.err, "");
    return read_bytes(out("y.npy"));
  }

  /// Expects a refusal with this reason, and that nothing was written.
  void refuse(const std::vector<std::string>& more, const std::string& reason) const {
    refuse_command(command(more), reason);
  }
  void refuse_command(const std::vector<std::string>& whole, const std::string& reason) const {
    fs::remove_all(out_dir);
    fs::create_directory(out_dir);
    expect_refused(testing::headgate(whole), "attend", reason);
    EXPECT_TRUE(fs::is_empty(out_dir)) << reason;
  }

  static constexpr std::int64_t kB = 2, kHq = 4, kHkv = 2, kT = 5, kS = 7, kD = 8, kDv = 6;
  Scratch scratch;
  const std::string out_dir = scratch / "out";
};

std::vector<std::int64_t> shape_of(const std::string& path) { return io::read_npy(path).shape; }

TEST_F(AttendTest, Input_FortranOrder_GivesTheSameOutput) {
  const std::string expected = result({"--gate", in("z"), "--bias", in("bias")});
  put("q", {kB, kHq, kT, kD}, DType::f32, 4, Order::fortran);
  put("v", {kB, kHkv, kS, kDv}, DType::f32, 4, Order::fortran);
  put("z", {kB, kHq, kT, kDv}, DType::f32, 4, Order::fortran);
  put("bias", {1, 1, kT, kS}, DType::f32, 2, Order::fortran);
  EXPECT_EQ(result({"--gate", in("z"), "--bias", in("bias")}), expected);
}

TEST_F(AttendTest, Outputs_EachRankOfQ_HaveIt) {
  const std::vector<std::string> all = {"--lse",       out("lse.npy"), "--weights",  out("p.npy"),
                                        "--max-logit", out("m.npy"),   "--grad-out", in("dy"),
                                        "--grad-dir",  out("grads"),   "--gate",     in("z")};
  using Dims = std::vector<std::int64_t>;
  const auto expect_shapes = [&](const Dims& lead_q, const Dims& lead_k) {
    const auto of = [](Dims lead, const Dims& last) {
      lead.insert(lead.end(), last.begin(), last.end());
      return lead;
    };
    result(all);
    EXPECT_EQ(shape_of(out("y.npy")), of(lead_q, {kT, kDv}));
    EXPECT_EQ(shape_of(out("lse.npy")), of(lead_q, {kT}));
    EXPECT_EQ(shape_of(out("p.npy")), of(lead_q, {kT, kS}));
    EXPECT_EQ(shape_of(out("m.npy")), (Dims{lead_q.size() > 1 ? lead_q[0] : 1, lead_q.empty() ? 1 : lead_q.back()}));
    EXPECT_EQ(shape_of(out("grads/dq.npy")), of(lead_q, {kT, kD}));
    EXPECT_EQ(shape_of(out("grads/dk.npy")), of(lead_k, {kS, kD}));
    EXPECT_EQ(shape_of(out("grads/dv.npy")), of(lead_k, {kS, kDv}));
    EXPECT_EQ(shape_of(out("grads/dz.npy")), of(lead_q, {kT, kDv}));
  };
  expect_shapes({kB, kHq}, {kB, kHkv});
  const auto put_all = [this](std::int64_t hq, std::int64_t hkv, std::size_t rank) {
    put("q", {1, hq, kT, kD}, DType::f32, rank);
    put("k", {1, hkv, kS, kD}, DType::f32, rank);
    put("v", {1, hkv, kS, kDv}, DType::f32, rank);
    put("z", {1, hq, kT, kDv}, DType::f32, rank);
    put("dy", {1, hq, kT, kDv}, DType::f32, rank);
  };
  put_all(kHq, kHkv, 3);
  expect_shapes({kHq}, {kHkv});
  put_all(1, 1, 2);
  expect_shapes({}, {});
}

TEST_F(AttendTest, Gradients_OfInputsGiven_AreWritten) {
  const auto names = [this] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(out("grads"))) found.insert(entry.path().filename().string());
    fs::remove_all(out("grads"));
    return found;
  };
  const std::vector<std::string> grads = {"--grad-out", in("dy"), "--grad-dir", out("grads")};
  const auto with = [&grads](std::vector<std::string> more) {
    more.insert(more.end(), grads.begin(), grads.end());
    return more;
  };
  using Names = std::set<std::string>;
  result(with({}));
  EXPECT_EQ(names(), (Names{"dq.npy", "dk.npy", "dv.npy"}));
  result(with({"--gate", in("z"), "--bias", in("bias"), "--sinks", in("sinks")}));
  EXPECT_EQ(names(), (Names{"dq.npy", "dk.npy", "dv.npy", "dz.npy", "dbias.npy", "dsinks.npy"}));
  result(with({"--gate", in("z"), "--gate-fn", "none", "--off-by-one"}));
  EXPECT_EQ(names(), (Names{"dq.npy", "dk.npy", "dv.npy"}));
}

TEST_F(AttendTest, Statistics_AskedFor_AreWritten) {
  const auto names = [this] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(out("stats"))) found.insert(entry.path().filename().string());
    return found;
  };
  using Names = std::set<std::string>;
  const Names always{"row_max.npy", "entropy.npy", "first.npy", "key_mass.npy"};
  result({"--stats", out("stats")});
  EXPECT_EQ(names(), always);
  fs::remove_all(out("stats"));
  result({"--stats", out("stats"), "--top-k", "3", "--window-share", "1", "--rows", "4,0", "--gate", in("z"),
          "--grad-out", in("dy"), "--grad-dir", out("grads")});
  Names all = always;
  all.merge(Names{"first_gated.npy", "window_share.npy", "topk_index.npy", "topk_weight.npy", "rows.npy"});
  EXPECT_EQ(names(), all);
  using Dims = std::vector<std::int64_t>;
  EXPECT_EQ(shape_of(out("stats/entropy.npy")), (Dims{kB, kHq, kT}));
  EXPECT_EQ(shape_of(out("stats/key_mass.npy")), (Dims{kB, kHq, kS}));
  EXPECT_EQ(shape_of(out("stats/topk_index.npy")), (Dims{kB, kHq, kT, 3}));
  EXPECT_EQ(shape_of(out("stats/rows.npy")), (Dims{kB, kHq, 2, kS}));
}

TEST_F(AttendTest, Statistics_UnknownName_IsRefused) {
  refuse({"--top-k", "3"}, "--stats");
  refuse({"--stats", out("stats"), "--rows", "1,"}, "--rows is '1,' but must be whole numbers");
  refuse({"--stats", out("stats"), "--rows", "5"}, "--rows 5: there is no query 5; q has 5");
  refuse({"--stats", out("stats"), "--top-k", "0"}, "--top-k");
}

TEST_F(AttendTest, OffByOne_Option_EqualsASinkOfZero) {
  const std::string plain = result();
  const std::string off_by_one = result({"--off-by-one"});
  EXPECT_NE(off_by_one, plain);
  put_values("zeros", std::vector<float>(kHq), {1, 1, 1, kHq}, 1);
  EXPECT_EQ(result({"--sinks", in("zeros")}), off_by_one);
}

TEST_F(AttendTest, Output_AnyNumberOfThreads_IsBitwiseIdentical) {
  const std::string one = result({"--threads", "1", "--causal"});
  for (const char* n : {"2", "3", "7"}) EXPECT_EQ(result({"--threads", n, "--causal"}), one);
}

TEST_F(AttendTest, GateFunction_NotGiven_IsSigmoidTimes) {
  const std::string gated = result({"--gate", in("z")});
  EXPECT_EQ(result({"--gate", in("z"), "--gate-fn", "sigmoid", "--gate-op", "mul"}), gated);
  EXPECT_NE(result({"--gate", in("z"), "--gate-fn", "silu"}), gated);
  const std::string plain = result();
  EXPECT_EQ(result({"--gate", in("z"), "--gate-fn", "none"}), plain);
  EXPECT_EQ(result({"--gate-fn", "none"}), plain);
}

TEST_F(AttendTest, Precision_Native16_ChangesTheProducts) {
  put("q", {1, 2, 80, 16}, DType::f32);
  put("k", {1, 2, 140, 16}, DType::f32);
  put("v", {1, 2, 140, 16}, DType::f32);
  const std::string exact = result({"--dtype", "bf16"});
  EXPECT_EQ(result({"--dtype", "bf16", "--precision", "exact"}), exact);
  const std::string native16 = result({"--dtype", "bf16", "--precision", "native16"});
  EXPECT_EQ(native16 == exact, native16_products().empty());
}

TEST_F(AttendTest, DType_Given_ConvertsTheInputs) {
  const std::string f32 = result();
  const std::string f64 = result({"--dtype", "f64"});
  EXPECT_EQ(io::read_npy(out("y.npy")).dtype, DType::f64);
  result({"--dtype", "f16"});
  EXPECT_EQ(io::read_npy(out("y.npy")).dtype, DType::f16);
  const std::string bf16 = result({"--dtype", "bf16"});
  const io::Array y = io::read_npy(out("y.npy"));
  ASSERT_EQ(y.dtype, DType::f32);
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const auto x = static_cast<float>(load_element(y.data.get(), y.dtype, i));
    ASSERT_EQ(to_f32(to_bf16(x)), x) << "not rounded to bf16";
  }
  // Files of any dtype, or of several, give what files of that dtype would give.
  put("q", {kB, kHq, kT, kD}, DType::f64);
  put("k", {kB, kHkv, kS, kD}, DType::f16);
  EXPECT_EQ(result({"--dtype", "f32"}), f32);
  EXPECT_EQ(result({"--dtype", "f64"}), f64);
  EXPECT_EQ(result({"--dtype", "bf16"}), bf16);
}

TEST_F(AttendTest, Bias_AnyFloat_IsAccepted) {
  const std::string expected = result({"--bias", in("bias")});
  for (const DType dtype : {DType::f16, DType::f64}) {
    put("bias2", {1, 1, kT, kS}, dtype, 2, Order::c, "bias");
    EXPECT_EQ(result({"--bias", in("bias2")}), expected);
  }
}

TEST_F(AttendTest, MaskAndBias_OfTheKeysAlone_AreTakenAsOneRow) {
  const auto grads = [this] {
    return std::vector<std::string>{"--grad-out", in("dy"), "--grad-dir", out("grads"),
                                    "--mask",     in("m"),  "--bias",     in("b")};
  };
  std::vector<std::string> results;
  for (const std::size_t rank : {std::size_t{4}, std::size_t{2}, std::size_t{1}}) {
    put_values("m", std::vector<std::uint8_t>{1, 0, 1, 1, 0, 1, 1}, {1, 1, 1, kS}, rank);
    put("b", {1, 1, 1, kS}, DType::f32, rank);
    results.push_back(result(grads()));
    EXPECT_EQ(shape_of(out("grads/dbias.npy")).size(), rank);
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST_F(AttendTest, Dimensions_Empty_WriteEmptyOutputs) {
  put("q", {kB, kHq, 0, kD});
  result();
  EXPECT_EQ(shape_of(out("y.npy")), (std::vector<std::int64_t>{kB, kHq, 0, kDv}));
  put("q", {kB, kHq, kT, kD});
  put("k", {kB, kHkv, 0, kD});
  put("v", {kB, kHkv, 0, kDv});
  result();  // no key is visible, so attention is 0
  const io::Array y = io::read_npy(out("y.npy"));
  for (std::int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(load_element(y.data.get(), y.dtype, i), 0.0);
}

TEST_F(AttendTest, Output_Exists_IsReplaced) {
  write_bytes(out("y.npy"), "old");
  EXPECT_EQ(result(), result());
  EXPECT_EQ(std::distance(fs::directory_iterator(out_dir), {}), 1);
}

TEST_F(AttendTest, Usage_Bad_IsRefused) {
  refuse_command({"attend"}, "--q is required");
  refuse_command({"attend", "--q", in("q"), "--k", in("k"), "--v", in("v")}, "--out is required");
  refuse({"--window", "3"}, "--window is '3'");
  refuse({"--window", "3,4,5"}, "--window is '3,4,5'");
  refuse({"--window", "a,b"}, "--window is 'a,b'");
  refuse({"--dropout", "1"}, "dropout is 1 but must be in [0, 1)");
  refuse({"--window", "0,-99999999999999999999"}, "--window is");
  refuse({"--scale", "nan"}, "scale is nan");
  refuse({"--scale", "inf"}, "scale is inf");
  refuse({"--scale", "1e39"}, "scale is 1e+39 but must be finite in f32");
  refuse({"--scale", "much"}, "--scale");
  refuse({"--softcap", "-1"}, "softcap is -1");
  refuse({"--gate-threshold", "0.1"}, "--gate-threshold requires --gate");
  refuse({"--gate-threshold", "-1", "--gate", in("z")}, "gate_threshold is -1 but must be at least 0");
  refuse({"--gate-threshold", "0.1", "--gate", in("z"), "--gate-op", "add"},
         "gate_threshold is 0.1 but there is no gate that multiplies");
  refuse({"--gate-threshold", "0.1", "--gate", in("z"), "--grad-out", in("dy"), "--grad-dir", out("grads")},
         "excludes");
  refuse({"--gate-fn", "relu", "--gate", in("z")}, "--gate-fn: 'relu' is none of sigmoid, ");
  refuse({"--gate-op", "sub", "--gate", in("z")}, "--gate-op: 'sub' is none of mul, add");
  refuse({"--gate-fn", "silu"}, "--gate-fn silu needs --gate");
  refuse({"--gate-op", "add"}, "--gate-op requires --gate");
  refuse({"--dtype", "f8"}, "--dtype: 'f8' is none of f32, f64, f16, bf16");
  refuse({"--precision", "half"}, "--precision: 'half' is none of exact, native16");
  refuse({"--precision", "native16"}, "precision is native16 but q is f32, not bf16");
  refuse({"--threads", "0"}, "--threads");
  refuse({"--threads", "-1"}, "--threads");
  refuse({"--threads", "many"}, "--threads");
  refuse({"--off-by-one", "--sinks", in("sinks")}, "excludes");
  refuse({"--grad-out", in("dy")}, "--grad-out requires --grad-dir");
  refuse({"--grad-dir", out("grads")}, "--grad-dir requires --grad-out");
  refuse({"--bias", ""}, "--bias");
  refuse({"--window", ""}, "--window");
  refuse({"--frobnicate"}, "--frobnicate");
  refuse({"surplus"}, "surplus");
}

TEST_F(AttendTest, Outputs_SamePath_AreRefused) {
  refuse({"--lse", out("y.npy")}, "--lse " + out("y.npy") + " are one file: give two paths");
  refuse({"--lse", out("../out/./y.npy")}, "--lse " + out("../out/./y.npy") + " are one file");
  refuse({"--lse", out("p.npy"), "--weights", out("p.npy")}, "--weights " + out("p.npy") + " are one file");
  refuse({"--lse", out("grads/dq.npy"), "--grad-out", in("dy"), "--grad-dir", out("grads")},
         "--grad-dir " + out("grads/dq.npy") + " are one file");
}

TEST_F(AttendTest, Output_IsAnInput_IsRefused) {
  const auto refuse_out = [this](const std::string& path, const std::string& name) {
    const std::string option = name == "z" ? "--gate" : "--" + name;
    const std::string before = read_bytes(path);
    const Outcome outcome = testing::headgate({"attend", "--q", in("q"), "--k", in("k"), "--v", in("v"), "--gate",
                                               in("z"), "--bias", in("bias"), "--out", path});
    expect_refused(outcome, "attend", "--out " + path + " would overwrite " + in(name) + ", a file of " + option);
    EXPECT_EQ(read_bytes(path), before);
  };
  refuse_out(in("q"), "q");
  refuse_out(scratch / "out/../k.npy", "k");
  refuse_out(in("z"), "z");
  refuse_out(in("bias"), "bias");
  fs::create_symlink(in("v"), out("link.npy"));
  refuse_out(out("link.npy"), "v");
  fs::create_hard_link(in("v"), out("hard.npy"));
  refuse_out(out("hard.npy"), "v");
  put("dq", {kB, kHq, kT, kDv});
  const std::string before = read_bytes(in("dq"));
  refuse({"--grad-out", in("dq"), "--grad-dir", scratch.path()},
         "--grad-dir " + in("dq") + " would overwrite " + in("dq") + ", a file of --grad-out");
  EXPECT_EQ(read_bytes(in("dq")), before);
  refuse({"--lse", in("q")}, "--lse " + in("q") + " would overwrite " + in("q") + ", a file of --q");
}

TEST_F(AttendTest, Outputs_SameFile_AreRefused) {
  write_bytes(scratch / "old.npy", "old");
  fs::create_hard_link(scratch / "old.npy", scratch / "same.npy");
  const Outcome outcome = testing::headgate({"attend", "--q", in("q"), "--k", in("k"), "--v", in("v"), "--out",
                                             scratch / "old.npy", "--lse", scratch / "same.npy"});
  expect_refused(outcome, "attend", "--lse " + (scratch / "same.npy") + " are one file");
  EXPECT_EQ(read_bytes(scratch / "old.npy"), "old");
}

TEST_F(AttendTest, Path_TakesNoFile_IsRefused) {
  refuse({"--lse", out("missing/lse.npy")}, "missing/lse.npy: cannot write: there is no directory " + out("missing"));
  refuse({"--lse", out_dir}, "not a regular file");
  refuse({"--lse", in("q") + "/lse.npy"}, "cannot write: Not a directory");
  refuse({"--lse", "/dev/null"}, "not a regular file");
  refuse({"--lse", "/proc/lse.npy"}, "cannot write");
  refuse({"--grad-out", in("dy"), "--grad-dir", out("missing/grads")}, "cannot write: there is no directory");
  refuse({"--grad-out", in("dy"), "--grad-dir", in("q")}, "cannot write: Not a directory");
}

TEST_F(AttendTest, DType_NotSupported_IsRefusedByName) {
  put("k", {kB, kHkv, kS, kD}, DType::f64);
  refuse({}, "k.npy: has dtype f64 but " + in("q") + " has f32");
  put("k", {kB, kHkv, kS, kD});
  for (const char* name : {"v", "z", "dy"}) {
    const Shape shape = {kB, name[0] == 'v' ? kHkv : kHq, name[0] == 'v' ? kS : kT, kDv};
    put(name, shape, DType::f16);
    refuse({"--gate", in("z"), "--grad-out", in("dy"), "--grad-dir", out("g")},
           std::string(name) + ".npy: has dtype f16");
    put(name, shape);
  }
  put_values("whole", std::vector<std::int32_t>(kB * kHq * kT * kD), {kB, kHq, kT, kD}, 4);
  refuse_command({"attend", "--q", in("whole"), "--k", in("k"), "--v", in("v"), "--out", out("y.npy")},
                 "whole.npy: has dtype i32 but must be f16, f32 or f64");
  refuse({"--mask", in("bias")}, "bias.npy: has dtype f32 but must be bool");
  refuse({"--query-offsets", in("sinks")}, "sinks.npy: has dtype f32 but must be i32 or i64");
  refuse({"--key-lengths", in("sinks")}, "sinks.npy: has dtype f32 but must be i32 or i64");
  refuse({"--sinks", in("whole")}, "whole.npy: has dtype i32");
  refuse({"--bias", in("whole")}, "whole.npy: has dtype i32");
  refuse({"--key-indices", in("bias")}, "bias.npy: has dtype f32 but must be i32 or i64");
}

TEST_F(AttendTest, Shapes_Disagree_AreRefused) {
  put("k3", {1, kHkv, kS, kD}, DType::f32, 3);
  refuse_command({"attend", "--q", in("q"), "--k", in("k3"), "--v", in("v"), "--out", out("y.npy")},
                 "k3.npy: has shape (2, 7, 8) but must be of rank 4 as q");
  put("k9", {kB, kHkv, kS, kD + 1});
  refuse_command({"attend", "--q", in("q"), "--k", in("k9"), "--v", in("v"), "--out", out("y.npy")}, "D is 9 and 8");
  put("flat", {1, 1, 1, kD}, DType::f32, 1);
  refuse_command({"attend", "--q", in("flat"), "--k", in("k"), "--v", in("v"), "--out", out("y.npy")},
                 "flat.npy: has shape (8,) but must be (T,D), (H,T,D) or (B,H,T,D)");
  put("wide", {kB, kHq, kT, 577});
  put("wide_k", {kB, kHkv, kS, 577});
  refuse_command({"attend", "--q", in("wide"), "--k", in("wide_k"), "--v", in("v"), "--out", out("y.npy")},
                 "D is 577 but must be 1 to 576");
  put("z5", {kB, kHq, kT, kDv - 1});
  refuse({"--gate", in("z5")}, "gate has shape (2,4,5,5)");
  refuse({"--grad-out", in("z5"), "--grad-dir", out("g")}, "dy has shape (2,4,5,5)");
  put("bias5", {1, 1, kT, kS - 1}, DType::f32, 2);
  refuse({"--bias", in("bias5")}, "bias has shape (1,1,5,6)");
  refuse({"--sinks", in("bias5")}, "bias5.npy: sinks has shape (1,5,6,1) but (1,Hq,T,1) is (1,4,5,1)");
  refuse({"--sinks", in("z5")}, "z5.npy: has shape (2, 4, 5, 5) but must be (H), (H,T) or (B|1,H,T)");
  put("alibi", {1, 1, 1, kHq + 1}, DType::f32, 1);
  refuse({"--alibi", in("alibi")}, "alibi_slopes has shape (1,1,1,5)");
  put_values("lengths", std::vector<std::int64_t>{kS, kS + 1}, {1, 1, 1, kB}, 1);
  refuse({"--key-lengths", in("lengths")}, "lengths.npy: key_lengths[1] is 8 but must be 0 to S = 7");
  refuse({"--cu-seqlens-q", in("lengths"), "--cu-seqlens-k", in("lengths")}, "B is 2 but must be 1");
}

TEST_F(AttendTest, AuxiliaryArray_Bad_IsRefusedWithItsFile) {
  put_values("offsets", std::vector<std::int64_t>{0}, {1, 1, 1, 1}, 1);
  refuse({"--query-offsets", in("offsets")}, "offsets.npy: query_offsets has shape (1,1,1,1)");
  put("slopes", {1, 1, 1, kHq + 1}, DType::f32, 1);
  refuse({"--alibi", in("slopes")}, "slopes.npy: alibi_slopes has shape");
  put("scales", {kB, kHkv, kS, 1});
  refuse({"--k-scale", in("scales"), "--v-scale", in("scales")}, "scales.npy: k_scale is given but k has dtype f32");
  put_values("table", std::vector<std::int32_t>{0, 9}, {1, 1, kB, 1}, 2);
  put_values("lengths", std::vector<std::int64_t>{kS, kS}, {1, 1, 1, kB}, 1);
  refuse({"--block-table", in("table"), "--key-lengths", in("lengths")}, "table.npy: block_table[1,0] is 9");
}

TEST_F(AttendTest, Rows_BeyondTheQueries_AreRefusedByTheOptionsName) {
  refuse({"--stats", out("s"), "--rows", "0,99"}, "--rows 0,99: there is no query 99; q has 5, numbered from 0");
}

TEST_F(AttendTest, Statistics_LoopOfLinks_IsNamed) {
  fs::create_symlink("other", scratch / "loop");
  fs::create_symlink("loop", scratch / "other");
  refuse({"--stats", scratch / "loop"}, "is a loop of symbolic links");
  refuse({"--lse", scratch / "loop"}, "is a loop of symbolic links");
}

TEST_F(AttendTest, File_HeaderContradictsItsData_IsRefused) {
  const std::string whole = read_bytes(in("q"));
  for (const std::size_t n : {std::size_t{0}, std::size_t{9}, std::size_t{60}, whole.size() - 1}) {
    write_bytes(in("q"), whole.substr(0, n));
    refuse({}, "q.npy: ");
  }
  write_bytes(in("q"), whole + "x");
  refuse({}, "q.npy: shape (2, 4, 5, 8) of <f4 takes 1280 bytes of data, but 1281 follow the header: trailing data");
  // The file has no elements but claims 2^32 heads.
  std::string many = whole.substr(0, 128);
  const std::string shape = "(2, 4, 5, 8), }";
  many.replace(many.find(shape), shape.size() + 24, "(65536, 65536, 0, 8), }                ");
  write_bytes(in("q"), many);
  refuse({}, "more than 16777216 heads in all");
  fs::remove(in("q"));
  refuse({}, "q.npy: cannot open: No such file or directory");
}

/// Flips bits in every file at once. The tool must not crash, and must not write an output when it refuses.
TEST_F(AttendTest, File_Damaged_IsReadOrRefused) {
  std::mt19937 random(250506708);  // NOLINT: the same damage in every run
  const std::vector<std::string> names = {"q", "k", "v", "z", "bias", "sinks"};
  for (int round = 0; round < 60; ++round) {
    const std::string& name = names[static_cast<std::size_t>(round) % names.size()];
    const std::string whole = read_bytes(in(name));
    std::string bytes = whole;
    for (auto n = 1 + random() % 2; n > 0; --n) bytes[random() % 128] = static_cast<char>(random());
    write_bytes(in(name), bytes);
    fs::remove_all(out_dir);
    fs::create_directory(out_dir);
    const Outcome outcome = testing::headgate(
        command({"--gate", in("z"), "--bias", in("bias"), "--sinks", in("sinks"), "--lse", out("lse.npy")}));
    if (outcome.status == 0) {
      EXPECT_NO_THROW(io::read_npy(out("y.npy")));
      EXPECT_NO_THROW(io::read_npy(out("lse.npy")));
    } else {
      expect_refused(outcome, "attend", "");
      EXPECT_TRUE(fs::is_empty(out_dir));
    }
    write_bytes(in(name), whole);
  }
}

/// Makes the shell run `attend` with a limit on file sizes that the small result fits but the weights exceed.
class AttendOutOfSpaceTest : public AttendTest {
 protected:
  AttendOutOfSpaceTest() {
    put("q", {1, 1, 64, 1}, DType::f32, 2);
    put("k", {1, 1, 64, 1}, DType::f32, 2);
    put("v", {1, 1, 64, 1}, DType::f32, 2);
    put("dy", {1, 1, 64, 1}, DType::f32, 2);
    write_bytes(out("y.npy"), "old");
  }

  Outcome attend_limited() const {
    std::string line = "ulimit -f 4; exec " + headgate_path();  // POSIX: 512-byte units, 1024 in some shells
    for (const std::string& word :
         command({"--weights", out("p.npy"), "--grad-out", in("dy"), "--grad-dir", out("g")})) {
      line += " '" + word + "'";
    }
    return run_program({"/bin/sh", "-c", line});
  }
};

TEST_F(AttendOutOfSpaceTest, Outputs_DiskFull_LeaveNothing) {
  expect_refused(attend_limited(), "attend", "p.npy: cannot write: File too large");
  EXPECT_EQ(read_bytes(out("y.npy")), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(out_dir), {}), 1);
}

}  // namespace
}  // namespace headgate

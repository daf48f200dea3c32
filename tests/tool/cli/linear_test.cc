// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "headgate/linear_attention.hpp"
#include "library/core/element.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "models/io/npy.hpp"
#include "models/io/scratch.hpp"
#include "tool/cli/attend_files.hpp"
#include "tool/cli/tool.hpp"

// `headgate linear` gives the bits that the library gives.

namespace headgate {
namespace {

namespace fs = std::filesystem;
using headgate::testing::expect_refused;
using headgate::testing::Order;
using headgate::testing::Outcome;
using headgate::testing::read_bytes;
using headgate::testing::Scratch;
using headgate::testing::write_npy;

/// Writes a small problem's files, and runs commands on them.
class LinearTest : public ::testing::Test {
 protected:
  LinearTest() {
    fs::create_directory(out_dir);
    put_problem(DType::f32);
  }

  void put_problem(DType dtype) {
    put("q", dtype, {kB, kHq, kT, kD});
    put("k", dtype, {kB, kHk, kT, kD});
    put("v", dtype, {kB, kHv, kT, kDv});
    put("g", dtype, {kB, kHv, kT, kD}, -1.0, 0.0);
    put("beta", dtype, {kB, kHv, kT, 1}, 0.0, 1.0);
    put("s", DType::f64, {kB, kHv, kD, kDv});
    put("dy", dtype, {kB, kHq, kT, kDv});
    put("ds", DType::f32, {kB, kHv, kD, kDv});
  }

  /// Writes numbers, seeded by name, that every dtype has, and keeps them for calls of the library.
  void put(const std::string& name, DType dtype, const Shape& shape, double low = -1.0, double high = 1.0,
           std::size_t rank = 4, Order order = Order::c) {
    io::Array array = io::make_array(dtype, {shape.begin(), shape.end()});
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(name)));
    std::uniform_int_distribution<int> digits(static_cast<int>(low * 64), static_cast<int>(high * 64));
    for (std::int64_t i = 0; i < array.numel(); ++i) store_element(array.data.get(), dtype, i, digits(random) / 64.0);
    write_npy(in(name), {array.data.get(), dtype, shape, contiguous_strides(shape)}, rank, order);
    arrays_[name] = std::move(array);
  }

  template <typename T>
  void put_values(const std::string& name, const std::vector<T>& values) const {
    write_npy(in(name), make_vector_view(values.data(), static_cast<std::int64_t>(values.size())), 1);
  }

  TensorView view(const std::string& name) const { return view_of(arrays_.at(name)); }
  static TensorView view_of(const io::Array& array) {
    Shape shape{1, 1, 1, 1};
    std::copy(array.shape.begin(), array.shape.end(), shape.end() - static_cast<std::ptrdiff_t>(array.shape.size()));
    return {array.data.get(), array.dtype, shape, contiguous_strides(shape)};
  }

  std::string in(const std::string& name) const { return scratch / name + ".npy"; }
  std::string out(const std::string& name) const { return out_dir + "/" + name; }

  std::vector<std::string> command(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"linear", "--q", in("q"), "--k", in("k"), "--v", in("v"), "--out", out("y.npy")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  void run(const std::vector<std::string>& more = {}) const {
    const Outcome outcome = testing::headgate(command(more));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out + outcome.err, "");
  }

  /// Expects a refusal with this reason, and that nothing was written.
  void refuse(const std::vector<std::string>& more, const std::string& reason) const {
    fs::remove_all(out_dir);
    fs::create_directory(out_dir);
    expect_refused(testing::headgate(command(more)), "linear", reason);
    EXPECT_TRUE(fs::is_empty(out_dir)) << reason;
  }

  /// Expects that a file has these numbers, bit for bit.
  void expect_file(const std::string& name, const io::Array& want) const {
    const io::Array found = io::read_npy(out(name));
    EXPECT_EQ(found.dtype, want.dtype) << name;
    EXPECT_EQ(found.shape, want.shape) << name;
    const auto bytes = [](const io::Array& array) {
      return std::string(reinterpret_cast<const char*>(array.data.get()), array.bytes());
    };
    EXPECT_EQ(bytes(found), bytes(want)) << name;
  }

  /// Runs the command with both passes, and expects the results of the library.
  void expect_bits_of_library(LinearRule rule, DType dtype) const {
    const LinearRuleRow& traits = rule_row(rule);
    LinearAttentionInputs inputs{.q = view("q"), .k = view("k"), .v = view("v"), .state = view("s")};
    std::vector<std::string> more = {"--rule",      std::string(traits.word),
                                     "--scale",     "0.75",
                                     "--l2-norm",   "0.0001",
                                     "--state",     in("s"),
                                     "--threads",   "2",
                                     "--out-state", out("s.npy"),
                                     "--grad-out"};
    more.insert(more.end(), {in("dy"), "--grad-out-state", in("ds"), "--grad-dir", out("g")});
    if (traits.has_decay) {
      inputs.decay = view("g");
      more.insert(more.end(), {"--decay", in("g")});
    }
    if (traits.has_delta) {
      inputs.beta = view("beta");
      more.insert(more.end(), {"--beta", in("beta")});
    }
    const LinearAttentionOptions options{.rule = rule, .scale = 0.75, .l2_norm = 1e-4};
    const io::Array y = io::make_array(dtype, {kB, kHq, kT, kDv});
    const io::Array state = io::make_array(dtype == DType::f64 ? DType::f64 : DType::f32, {kB, kHv, kD, kDv});
    linear_attention_forward({view_of(y), view_of(state)}, inputs, options);
    run(more);
    expect_file("y.npy", y);
    expect_file("s.npy", state);

    LinearAttentionGradients gradients;
    std::map<std::string, io::Array> wanted;
    for (const LinearGradient& row : kLinearGradients) {
      const ConstTensorView& of = inputs.*row.gradient_of;
      if (!of.present()) continue;
      io::Array& array = wanted[std::string(row.file.name) + ".npy"];
      array = io::make_array(of.dtype, {of.shape.begin(), of.shape.end()});
      gradients.*row.member = view_of(array);
    }
    linear_attention_backward(gradients, inputs, {view("dy"), view("ds")}, options);
    std::set<std::string> files, names;
    for (const auto& entry : fs::directory_iterator(out("g"))) files.insert(entry.path().filename().string());
    for (const auto& [name, array] : wanted) {
      names.insert(name);
      expect_file("g/" + name, array);
    }
    EXPECT_EQ(files, names);
    fs::remove_all(out("g"));
  }

  static constexpr std::int64_t kB = 2, kHq = 4, kHk = 1, kHv = 2, kT = 5, kD = 8, kDv = 6;
  Scratch scratch;
  const std::string out_dir = scratch / "out";

 private:
  std::map<std::string, io::Array> arrays_;
};

TEST_F(LinearTest, Results_EachRule_HaveTheBitsOfTheLibrary) {
  for (const LinearRuleRow& row : kLinearRules) {
    SCOPED_TRACE(row.word);
    expect_bits_of_library(row.value, DType::f32);
  }
}

TEST_F(LinearTest, Results_EachDType_HaveTheBitsOfTheLibrary) {
  for (const DType dtype : {DType::f64, DType::f16}) {
    SCOPED_TRACE(dtype_name(dtype));
    put_problem(dtype);
    expect_bits_of_library(LinearRule::gated_delta, dtype);
  }
}

TEST_F(LinearTest, Decay_InAnotherDType_IsReadAsF32) {
  put("g", DType::f64, {kB, kHv, kT, 1}, -1.0, 0.0);
  run({"--decay", in("g"), "--dtype", "bf16"});
  const std::string bf16 = read_bytes(out("y.npy"));
  put("g", DType::f32, {kB, kHv, kT, 1}, -1.0, 0.0);
  run({"--decay", in("g"), "--dtype", "bf16"});
  EXPECT_EQ(read_bytes(out("y.npy")), bf16);
  EXPECT_EQ(io::read_npy(out("y.npy")).dtype, DType::f32);
}

TEST_F(LinearTest, Input_FortranOrder_GivesTheSameOutput) {
  run({"--state", in("s")});
  const std::string expected = read_bytes(out("y.npy"));
  put("v", DType::f32, {kB, kHv, kT, kDv}, -1.0, 1.0, 4, Order::fortran);
  put("s", DType::f64, {kB, kHv, kD, kDv}, -1.0, 1.0, 4, Order::fortran);
  run({"--state", in("s")});
  EXPECT_EQ(read_bytes(out("y.npy")), expected);
}

TEST_F(LinearTest, Outputs_EachRankOfQ_HaveIt) {
  using Dims = std::vector<std::int64_t>;
  const auto expect_shapes = [this](std::int64_t hq, std::int64_t hv, std::size_t rank, const Dims& y) {
    put("q", DType::f32, {1, hq, kT, kD}, -1.0, 1.0, rank);
    put("k", DType::f32, {1, 1, kT, kD}, -1.0, 1.0, rank);
    put("v", DType::f32, {1, hv, kT, kDv}, -1.0, 1.0, rank);
    put("g", DType::f32, {1, hv, kT, 1}, -1.0, 0.0, rank);
    run({"--decay", in("g"), "--out-state", out("s.npy")});
    EXPECT_EQ(io::read_npy(out("y.npy")).shape, y);
    EXPECT_EQ(io::read_npy(out("s.npy")).shape, (Dims{1, hv, kD, kDv}));
  };
  expect_shapes(4, 2, 4, {1, 4, kT, kDv});
  expect_shapes(2, 4, 3, {4, kT, kDv});
  expect_shapes(1, 1, 2, {kT, kDv});
}

TEST_F(LinearTest, State_OfAnEarlierCall_GoesOn) {
  run({"--rule", "linear", "--out-state", out("s.npy")});
  run({"--rule", "linear", "--state", out("s.npy"), "--out-state", out("twice.npy")});
  const io::Array once = io::read_npy(out("s.npy")), twice = io::read_npy(out("twice.npy"));
  for (std::int64_t i = 0; i < once.numel(); ++i) {  // multiples of 2^-12: their sums are exact
    EXPECT_EQ(load_element(twice.data.get(), DType::f32, i), 2 * load_element(once.data.get(), DType::f32, i));
  }
}

TEST_F(LinearTest, PackedBatch_HasAStateForEachSequence) {
  for (const auto& [name, heads, dim] : {std::tuple{"q", kHq, kD}, {"k", kHk, kD}, {"v", kHv, kDv}}) {
    put(name, DType::f32, {1, heads, kT, dim});
  }
  put_values<std::int32_t>("bounds", {0, 2, 2, kT});
  run({"--cu-seqlens", in("bounds"), "--out-state", out("s.npy")});
  EXPECT_EQ(io::read_npy(out("s.npy")).shape, (std::vector<std::int64_t>{3, kHv, kD, kDv}));
  put_values<std::int64_t>("bounds", {0, 9});
  refuse({"--cu-seqlens", in("bounds")}, "bounds.npy: cu_seqlens[1] is 9 but must be T = 5");
  put_values<std::int64_t>("bounds", {});
  refuse({"--cu-seqlens", in("bounds"), "--out-state", out("s.npy")}, "bounds.npy: cu_seqlens has shape (1,1,1,0)");
}

TEST_F(LinearTest, Snapshots_HaveTheBitsOfTheLibrary) {
  const std::vector<std::int32_t> lengths{0, 2, 3, kT};
  const auto lengths_view = make_view(lengths.data(), {1, 1, kB, 2});
  write_npy(in("lengths"), lengths_view, 2);
  run({"--decay", in("g"), "--state", in("s"), "--snapshot-lengths", in("lengths"), "--out-snapshots", out("sn.npy"),
       "--stats", out("stats")});
  const io::Array y = io::make_array(DType::f32, {kB, kHq, kT, kDv});
  const io::Array snapshots = io::make_array(DType::f32, {kB * 2, kHv, kD, kDv});
  const LinearAttentionInputs inputs{.q = view("q"),
                                     .k = view("k"),
                                     .v = view("v"),
                                     .decay = view("g"),
                                     .state = view("s"),
                                     .snapshot_lengths = lengths_view};
  linear_attention_forward({.y = view_of(y), .snapshots = view_of(snapshots)}, inputs);
  expect_file("y.npy", y);
  expect_file("sn.npy", snapshots);
  EXPECT_TRUE(fs::exists(out("stats") + "/reach.npy"));
  refuse({"--snapshot-lengths", in("lengths"), "--out-snapshots", out("sn.npy"), "--grad-out", in("dy"), "--grad-dir",
          out("g")},
         "lengths.npy: snapshot_lengths is given, but only the forward pass writes snapshots: leave it out");
  refuse({"--snapshot-lengths", in("lengths")}, "lengths.npy: snapshot_lengths is given but snapshots is absent");
  refuse({"--out-snapshots", out("sn.npy")}, "--out-snapshots requires --snapshot-lengths");
}

/// Files of all figures but the means over queries, and of the weights of chosen queries.
TEST_F(LinearTest, Figures_StatsAndWeights_HaveTheBitsOfTheLibrary) {
  run({"--decay", in("g"), "--beta", in("beta"), "--state", in("s"), "--l2-norm", "0.0001", "--stats", out("stats"),
       "--weights", "4,0"});
  const LinearAttentionInputs inputs{view("q"), view("k"), view("v"), view("g"), view("beta"), view("s"), {}};
  const LinearAttentionOptions options{.l2_norm = 1e-4};
  const std::vector<std::int64_t> queries{4, 0};
  std::map<std::string, io::Array> wanted;
  const auto make = [&](const auto& row, std::vector<std::int64_t> sizes, auto& outputs) {
    io::Array& array = wanted[std::string(row.name) + ".npy"];
    array = io::make_array(DType::f32, std::move(sizes));
    const LinearOutputSizes all{kB, kB, kHv, kHq, kT, kD, 2};
    outputs.*row.member =
        TensorView(array.data.get(), DType::f32, all.shape(row.dims), contiguous_strides(all.shape(row.dims)));
  };
  LinearAttentionStatistics statistics;
  for (const LinearStatisticsOutput& row : kLinearStatistics) {
    if (row.dims == LinearOutputDims::query) make(row, {kB, kHq, kT}, statistics);
    if (row.dims == LinearOutputDims::state) make(row, {kB, kHv}, statistics);
  }
  LinearAttentionWeights weights;
  make(kLinearWeights[0], {kB, kHq, 2, kT}, weights);
  make(kLinearWeights[1], {kB, kHq, 2, kD}, weights);
  linear_attention_statistics(statistics, inputs, options);
  linear_attention_weights(weights, inputs, make_vector_view(queries.data(), 2), options);
  std::set<std::string> files, names;
  for (const auto& entry : fs::directory_iterator(out("stats"))) files.insert(entry.path().filename().string());
  for (const auto& [name, array] : wanted) {
    names.insert(name);
    expect_file("stats/" + name, array);
  }
  EXPECT_EQ(files, names);
  refuse({"--stats", out("stats"), "--weights", "0,5"}, "--weights 0,5: there is no query 5; q has 5, numbered from 0");
  refuse({"--stats", out("stats"), "--weights", "1,x"}, "--weights is '1,x' but must be whole numbers, I,J,...");
  refuse({"--weights", "1"}, "--stats");
}

TEST_F(LinearTest, Figures_OfOneHead_HaveTheRankOfQLessOne) {
  put("q", DType::f32, {1, 1, kT, kD}, -1.0, 1.0, 2);
  put("k", DType::f32, {1, 1, kT, kD}, -1.0, 1.0, 2);
  put("v", DType::f32, {1, 1, kT, kDv}, -1.0, 1.0, 2);
  run({"--rule", "linear", "--stats", out("stats"), "--weights", "3"});
  using Dims = std::vector<std::int64_t>;
  EXPECT_EQ(io::read_npy(out("stats/reach.npy")).shape, (Dims{kT}));
  EXPECT_EQ(io::read_npy(out("stats/half_life.npy")).shape, (Dims{1, 1}));
  EXPECT_EQ(io::read_npy(out("stats/weights.npy")).shape, (Dims{1, kT}));
}

TEST_F(LinearTest, Argument_Bad_IsRefusedWithItsFile) {
  refuse({"--decay", in("g"), "--rule", "delta"}, "g.npy: decay is given but the rule delta has none");
  refuse({"--rule", "gated_delt"}, "; did you mean gated_delta?");
  refuse({"--l2-norm", "-1"}, "l2_norm is -1 but must be at least 0 and finite");
  refuse({"--grad-dir", out("g")}, "--grad-dir");
  put("s", DType::f64, {kB, kHv, kD, kDv + 1});
  refuse({"--state", in("s")}, "s.npy: state has shape (2,2,8,7) but (N,Hv,D,Dv) is (2,2,8,6)");
  put("s", DType::f64, {1, kHv, kD, kDv}, -1.0, 1.0, 3);
  refuse({"--state", in("s")}, "s.npy: has shape (2, 8, 6) but must be (N,Hv,D,Dv)");
  put("ds", DType::f32, {1, kHv, kD, kDv});
  refuse({"--grad-out", in("dy"), "--grad-out-state", in("ds"), "--grad-dir", out("g")}, "ds.npy: incoming dstate has");
  put("beta", DType::f32, {1, kHv, kT, 1}, 0.0, 1.0, 3);
  refuse({"--beta", in("beta")}, "beta.npy: has shape (2, 5, 1) but must be of rank 4 as q, (2, 4, 5, 8), is");
  put("k", DType::f64, {kB, kHk, kT, kD});
  refuse({}, "k.npy: has dtype f64 but");
}

TEST_F(LinearTest, Dimension_TooLarge_IsRefusedBeforeStatesAreMade) {
  put("q", DType::f32, {1, 1, 0, 1 << 30});
  put("k", DType::f32, {1, 1, 0, 1 << 30});
  put("v", DType::f32, {1, 1, 0, 1 << 30});
  refuse({"--out-state", out("s.npy")}, "q.npy: q has shape (1,1,0,1073741824): D is 1073741824 but must be 1 to 256");
}

TEST_F(LinearTest, Output_OverAnInputOrAnother_IsRefused) {
  refuse({"--state", in("s"), "--out-state", in("s")}, "--out-state " + in("s") + " would overwrite " + in("s"));
  refuse({"--out-state", out("y.npy")}, "are one file");
}

}  // namespace
}  // namespace headgate

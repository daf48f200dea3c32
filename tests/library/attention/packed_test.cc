// SPDX-License-Identifier: Apache-2.0
// Checks that each sequence of a packed batch gets results bitwise identical to a separate call.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "headgate/statistics.hpp"
#include "library/attention/property.hpp"
#include "library/core/element.hpp"
#include "support/owned_tensor.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;

void expect_sequences_as_alone(verify::Case& problem) {
  const CaseSpec& spec = problem.spec();
  const AttentionInputs& in = problem.inputs();
  const AttentionOutputs out = problem.saving_outputs();
  const AttentionGradients& gradients = problem.gradients();
  attention_forward(out, in, problem.options());
  attention_backward(gradients, in, problem.saved(), problem.incoming(), problem.options());
  const AttentionStatistics& statistics = problem.statistics();
  attention_statistics(statistics, in, out.lse, problem.selection(), problem.options());

  std::int64_t q0 = 0;
  std::int64_t k0 = 0;
  for (std::int64_t n = 0; n < spec.packed; ++n) {
    const std::int64_t q1 = q0 + spec.packed_queries[n];
    const std::int64_t k1 = k0 + spec.packed_keys[n];
    const auto rows = [&](const ConstTensorView& view) { return part(view, 2, q0, q1); };
    const auto keys = [&](const ConstTensorView& view) { return part(view, 2, k0, k1); };
    AttentionInputs own = in;
    own.cu_seqlens_q = own.cu_seqlens_k = {};
    own.q = rows(in.q);
    own.gate = rows(in.gate);
    own.k = keys(in.k);
    own.v = keys(in.v);
    own.bias = part(rows(in.bias), 3, k0, k1);
    own.mask = part(in.mask.present() && in.mask.shape[2] == 1 ? in.mask : rows(in.mask), 3, k0, k1);
    own.key_indices = rows(in.key_indices);
    own.key_lengths = part(in.key_lengths, 3, n, n + 1);
    own.query_offsets = part(in.query_offsets, 3, n, n + 1);
    const Owned dsinks(spec.sinks_by_query ? rows(in.sinks) : TensorView{});
    if (spec.sinks_by_query) own.sinks = rows(in.sinks);
    const Owned y(rows(out.y)), lse(rows(out.lse)), attn(rows(out.attn));
    const Owned dq(own.q), dk(own.k), dv(own.v), dgate(own.gate), dbias(own.bias);
    attention_forward({y.view, lse.view, attn.view}, own, problem.options());
    attention_backward({dq.view, dk.view, dv.view, dgate.view, dbias.view, dsinks.view}, own,
                       {y.view, lse.view, attn.view}, {rows(problem.incoming().dy), rows(problem.incoming().dlse)},
                       problem.options());
    const std::string which = "sequence " + std::to_string(n) + " of " + describe(spec) + ": ";
    expect_equal(y.view, rows(out.y), which + "y");
    expect_equal(lse.view, rows(out.lse), which + "lse");
    expect_equal(attn.view, rows(out.attn), which + "attn");
    expect_equal(dq.view, rows(gradients.dq), which + "dq");
    expect_equal(dk.view, keys(gradients.dk), which + "dk");
    expect_equal(dv.view, keys(gradients.dv), which + "dv");
    expect_equal(dgate.view, rows(gradients.dgate), which + "dgate");
    expect_equal(dbias.view, part(rows(gradients.dbias), 3, k0, k1), which + "dbias");
    if (spec.sinks_by_query) expect_equal(dsinks.view, rows(gradients.dsinks), which + "dsinks");
    const Owned entropy(rows(statistics.entropy)), mass(part(statistics.key_mass, 3, k0, k1));
    const Owned top(rows(statistics.topk_weight)), mean(part(statistics.mean_row_max, 0, n, n + 1));
    AttentionStatistics own_statistics;
    own_statistics.entropy = entropy.view;
    own_statistics.key_mass = mass.view;
    own_statistics.topk_weight = top.view;
    own_statistics.mean_row_max = mean.view;
    attention_statistics(own_statistics, own, lse.view, {}, problem.options());
    expect_equal(entropy.view, rows(statistics.entropy), which + "entropy");
    expect_equal(mass.view, part(statistics.key_mass, 3, k0, k1), which + "key_mass");
    expect_equal(top.view, rows(statistics.topk_weight), which + "topk_weight");
    expect_equal(mean.view, part(statistics.mean_row_max, 0, n, n + 1), which + "mean_row_max");
    q0 = q1;
    k0 = k1;
  }
}

/// Also tests each kind of native16 products that the CPU has.
void expect_sequences_as_alone_on_every_target(const CaseSpec& spec) {
  const auto error = verify::check_on_every_target(
      spec, [](verify::Case& problem, const std::string& /*target*/) -> std::optional<std::string> {
        expect_sequences_as_alone(problem);
        return std::nullopt;
      });
  EXPECT_EQ(error.value_or(""), "");
}

/// Mixes dense and few queries, empty sequences, no keys, and more than a block of keys.
CaseSpec mixed(DType dtype) {
  CaseSpec spec;
  spec.Hkv = spec.group = 2;
  spec.T = 300 + 1 + 0 + 97 + 30 + 40 + 3;
  spec.S = 310 + 800 + 40 + 97 + 0 + 500 + 1;
  spec.packed_queries = {300, 1, 0, 97, 30, 40, 3};
  spec.packed_keys = {310, 800, 40, 97, 0, 500, 1};
  spec.packed = 7;
  spec.cu_seqlens = DType::i32;
  spec.D = 24;
  spec.Dv = 20;
  spec.dtype = dtype;
  spec.gate_input = GateInput::elementwise;
  spec.sinks = DType::f32;
  spec.dlse = DType::f32;
  spec.attn = true;
  spec.threads = 2;
  return spec;
}

TEST(Packed, PackedBatch_AnySequences_IsBitwiseIdenticalToSeparateCalls) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CaseSpec spec = mixed(dtype);
    expect_sequences_as_alone_on_every_target(spec);
    spec.causality = Causality::causal;
    spec.window_left = 250;
    spec.bias = {true, true, false, true};
    spec.mask = {true, true, true, true};
    spec.key_lengths = DType::i64;
    spec.query_offsets = DType::i32;
    spec.alibi_slopes = DType::f32;
    spec.sinks_by_query = true;
    expect_sequences_as_alone_on_every_target(spec);
  }
}

TEST(Packed, PackedBatch_ListsOfKeys_IsBitwiseIdenticalToSeparateCalls) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    CaseSpec spec = mixed(dtype);
    spec.key_indices = DType::i32;
    spec.list_entries = 150;
    spec.lists_by_head = true;
    expect_sequences_as_alone_on_every_target(spec);
  }
}

/// A separate call could take kernels that a packed batch cannot: for dbias, and for a mask that hides the last keys.
TEST(Packed, PackedBatch_BiasOrMaskOfKeys_IsBitwiseIdenticalToSeparateCalls) {
  CaseSpec spec = mixed(DType::f32);
  spec.sinks = DType::none;
  spec.mask = {true, true, false, false};
  for (const bool with_bias : {false, true}) {
    if (with_bias) spec.bias = {true, true, true, true};
    const auto error = verify::check_on_every_target(
        spec, [](verify::Case& problem, const std::string& /*target*/) -> std::optional<std::string> {
          const ConstTensorView& mask = problem.inputs().mask;
          auto* shown = static_cast<std::uint8_t*>(const_cast<void*>(mask.data));
          for (const std::int64_t keys : problem.spec().packed_keys) {
            for (std::int64_t j = 0; j < keys; ++j, shown += mask.strides[3]) *shown = j < keys - 9;
          }
          expect_sequences_as_alone(problem);
          return std::nullopt;
        });
    EXPECT_EQ(error.value_or(""), "");
  }
}

/// One batch has a sequence for each kernel. In the other each sequence is too short for native16, but their sum is
/// not.
TEST(Packed, PackedBatch_Native16SequencesOfAllKernels_IsBitwiseIdenticalToSeparateCalls) {
  CaseSpec spec = mixed(DType::bf16);
  spec.precision = Precision::native16;
  expect_sequences_as_alone_on_every_target(spec);
  spec.sinks_by_query = true;
  expect_sequences_as_alone_on_every_target(spec);
  spec.softcap = 20.0;  // small heads decline it
  expect_sequences_as_alone_on_every_target(spec);

  spec = mixed(DType::bf16);
  spec.precision = Precision::native16;
  spec.packed_queries = spec.packed_keys = {60, 60, 60};
  spec.packed = 3;
  spec.T = spec.S = 180;
  for (const DType sinks : {DType::none, DType::f32}) {
    spec.sinks = sinks;
    expect_sequences_as_alone_on_every_target(spec);
  }
}

/// One kernel sums dbias of all sequences, also of those that other kernels compute without dbias.
TEST(Packed, PackedBatch_Native16Bias_IsBitwiseIdenticalToSeparateCalls) {
  CaseSpec spec = mixed(DType::bf16);
  spec.precision = Precision::native16;
  for (const bool bias_f32 : {false, true}) {
    spec.bias_f32 = bias_f32;
    spec.bias = {true, true, true, true};
    expect_sequences_as_alone_on_every_target(spec);
  }
}

/// dsinks sums over sequences that different kernels compute.
TEST(Packed, PackedBatch_Native16SinksOfAllKernels_HaveTheRightGradient) {
  CaseSpec spec = mixed(DType::bf16);
  spec.precision = Precision::native16;
  expect_right(spec, verify::check_backward_case);
}

TEST(Packed, PackedBatch_MoreHeadsThanOneGroupOfTasks_MatchesTheOracle) {
  CaseSpec spec;
  spec.Hkv = 3;
  spec.packed_queries = {700, 20, 1900, 300};
  spec.packed_keys = spec.packed_queries;
  spec.packed = 4;
  spec.T = spec.S = 700 + 20 + 1900 + 300;
  spec.cu_seqlens = DType::i64;
  spec.D = spec.Dv = 256;
  spec.causality = Causality::causal;
  spec.threads = 2;
  verify::Case problem(spec);
  expect_sequences_as_alone(problem);
}

/// There are enough heads for each to be one thread's task; with 32 or more, K and V of short sequences are packed.
TEST(Packed, PackedBatch_ManyShortSequences_MatchesTheOracle) {
  for (const std::int64_t heads : {2, 33}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CaseSpec spec;
      spec.Hkv = heads;
      spec.group = heads == 2 ? 3 : 1;
      spec.D = 24;
      spec.Dv = 20;
      spec.dtype = dtype;
      spec.gate_input = GateInput::elementwise;
      spec.sinks = DType::f32;
      spec.attn = true;
      spec.threads = 2;
      for (std::int64_t n = 0; n < (heads == 2 ? 20 : 5); ++n) {
        spec.packed_queries.push_back(n % 7 == 6 ? 0 : 1 + n * 53 % 110);
        spec.packed_keys.push_back(n % 11 == 10 ? 0 : 1 + n * 31 % 120);
      }
      spec.packed = static_cast<std::int64_t>(spec.packed_queries.size());
      spec.T = std::accumulate(spec.packed_queries.begin(), spec.packed_queries.end(), std::int64_t{0});
      spec.S = std::accumulate(spec.packed_keys.begin(), spec.packed_keys.end(), std::int64_t{0});
      spec.cu_seqlens = DType::i32;
      spec.causality = heads == 2 ? Causality::causal : Causality::none;
      expect_sequences_as_alone_on_every_target(spec);
    }
  }
}

TEST(Packed, PackedBatch_NoOrEmptySequences_WritesNothing) {
  for (const std::int64_t sequences : {0, 1, 5}) {
    CaseSpec spec;
    spec.T = spec.S = 0;
    spec.cu_seqlens = DType::i32;
    spec.packed = sequences;
    spec.packed_queries = spec.packed_keys = std::vector<std::int64_t>(sequences, 0);
    verify::Case problem(spec);
    attention_forward(problem.saving_outputs(), problem.inputs(), problem.options());
    attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(), problem.options());
  }
}

TEST(Packed, PackedBatch_ManyTinySequences_MatchesTheOracle) {
  CaseSpec spec;
  spec.T = 5000;
  spec.S = 5000;
  spec.packed = 9000;
  spec.cu_seqlens = DType::i32;
  spec.packed_queries.assign(9000, 0);
  std::fill_n(spec.packed_queries.begin() + 2000, 5000, 1);
  spec.packed_keys = spec.packed_queries;
  spec.threads = 2;
  spec.weights = false;
  verify::Case problem(spec);
  attention_forward(problem.saving_outputs(), problem.inputs(), problem.options());
  attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(), problem.options());
  for (std::int64_t i = 0; i < 5000; ++i) {  // one key, so it has all the weight
    ASSERT_EQ(load(problem.saved().y, 0, 0, i, 0), load(problem.inputs().v, 0, 0, i, 0));
    ASSERT_NEAR(load(problem.gradients().dv, 0, 0, i, 0), load(problem.incoming().dy, 0, 0, i, 0), 1e-5);
  }
}

/// Makes queries of every kind on one pool of pages; the seed decides the number of keys.
CaseSpec paged_mix(DType dtype) {
  CaseSpec spec;
  spec.Hkv = spec.group = 2;
  spec.packed_queries = {200, 1, 0, 40, 3};
  spec.packed = 5;
  spec.T = 200 + 1 + 0 + 40 + 3;
  spec.page = 16;
  spec.S = 30 * spec.page;
  spec.key_lengths = DType::i32;
  spec.cu_seqlens = DType::i32;
  spec.D = 24;
  spec.Dv = 20;
  spec.dtype = dtype;
  spec.gate_input = GateInput::elementwise;
  spec.causality = Causality::causal;
  spec.sinks = DType::f32;
  spec.attn = true;
  spec.threads = 2;
  return spec;
}

/// Compares each sequence's queries with a separate call on its row of the block table; its last query is aligned with
/// its last key.
void expect_paged_sequences_as_alone(const verify::Case& problem) {
  const CaseSpec& spec = problem.spec();
  const AttentionInputs& in = problem.inputs();
  const AttentionOutputs out = problem.saving_outputs();
  const AttentionStatistics& statistics = problem.statistics();
  attention_forward(out, in, problem.options());
  attention_statistics(statistics, in, out.lse, problem.selection(), problem.options());
  std::int64_t q0 = 0;
  for (std::int64_t n = 0; n < spec.packed; ++n) {
    const std::int64_t q1 = q0 + spec.packed_queries[n];
    const auto rows = [&](const ConstTensorView& view) { return part(view, 2, q0, q1); };
    const std::int64_t first_position = load_index(in.key_lengths, n) - (q1 - q0);
    AttentionInputs own = in;
    own.cu_seqlens_q = {};
    own.q = rows(in.q);
    own.gate = rows(in.gate);
    own.bias = rows(in.bias);
    own.mask = rows(in.mask);
    own.block_table = part(in.block_table, 2, n, n + 1);
    own.k_first = part(in.k_first, 0, n, n + 1);
    own.v_first = part(in.v_first, 0, n, n + 1);
    own.key_lengths = part(in.key_lengths, 3, n, n + 1);
    own.query_offsets = part(in.query_offsets, 3, n, n + 1);
    if (!in.query_offsets.present()) own.query_offsets = make_vector_view(&first_position, 1);
    const Owned y(rows(out.y)), lse(rows(out.lse)), attn(rows(out.attn));
    const Owned entropy(rows(statistics.entropy)), mass(part(statistics.key_mass, 0, n, n + 1));
    attention_forward({y.view, lse.view, attn.view}, own, problem.options());
    AttentionStatistics own_statistics;
    own_statistics.entropy = entropy.view;
    own_statistics.key_mass = mass.view;
    attention_statistics(own_statistics, own, lse.view, {}, problem.options());
    const std::string which = "sequence " + std::to_string(n) + " of " + describe(spec) + ": ";
    expect_equal(y.view, rows(out.y), which + "y");
    expect_equal(lse.view, rows(out.lse), which + "lse");
    expect_equal(attn.view, rows(out.attn), which + "attn");
    expect_equal(entropy.view, rows(statistics.entropy), which + "entropy");
    expect_equal(mass.view, part(statistics.key_mass, 0, n, n + 1), which + "key_mass");
    q0 = q1;
  }
}

TEST(Packed, PackedBatch_SequencesOfACache_IsBitwiseIdenticalToSeparateCalls) {
  const TargetGuard guard;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool bytes : {false, true}) {
      CaseSpec spec = paged_mix(dtype);
      spec.quantized = bytes;
      if (bytes) {
        spec.query_offsets = DType::i64;
        spec.bias = {true, true, true, true};
        spec.mask = {true, false, true, true};
        spec.window_left = 100;
        spec.first_rows = DType::f32;
        spec.first = 6;
      }
      const verify::Case problem(spec);
      for (const std::string& target : supported_targets()) {
        set_target(target);
        expect_paged_sequences_as_alone(problem);
      }
    }
  }
}

TEST(Packed, PackedBatch_BadTables_IsRefused) {
  const verify::Case problem(paged_mix(DType::f32));
  const auto said_of = [&](const AttentionInputs& in) -> std::string {
    try {
      attention_forward(problem.saving_outputs(), in, problem.options());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  AttentionInputs in = problem.inputs();
  in.cu_seqlens_k = in.cu_seqlens_q;
  EXPECT_EQ(said_of(in),
            "attention_forward: cu_seqlens_k is given together with block_table: key_lengths say how many keys a "
            "sequence has in pages");
  in = problem.inputs();
  in.block_table = narrow(in.block_table, 2, 0, 4);
  EXPECT_EQ(said_of(in), "attention_forward: block_table has shape (1,1,4,30) but (1,1,N,M) is (1,1,5,30)");
  in = problem.inputs();
  in.key_lengths = {};
  EXPECT_EQ(said_of(in), "attention_forward: block_table is given but key_lengths is absent");
  const std::vector<std::int64_t> lengths{1, 2, 3, 481, 5};
  in.key_lengths = make_vector_view(lengths.data(), 5);
  EXPECT_EQ(said_of(in), "attention_forward: key_lengths[3] is 481 but must be 0 to S = 480");
}

}  // namespace
}  // namespace headgate

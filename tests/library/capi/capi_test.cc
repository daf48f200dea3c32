// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "headgate/headgate.h"
#include "headgate/headgate.hpp"
#include "library/attention/sample_call.hpp"
#include "library/capi/to_c.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/element.hpp"
#include "library/core/statistics_outputs.hpp"

// Checks that the C API computes bitwise the same as the C++ API.

namespace headgate::testing {
namespace {

headgate_attention_options c_options(const AttentionOptions& options) {
  const headgate_attention_options zeros = HEADGATE_ATTENTION_OPTIONS_INIT;
  return options_to_c<kAttentionOptions>(zeros, options);
}

headgate_attention_inputs c_inputs(const AttentionInputs& in) {
  const headgate_attention_inputs c = HEADGATE_ATTENTION_INPUTS_INIT;
  return tensors_to_c<kAttentionInputs>(c, in);
}

headgate_status forward_by_c(const SampleCall& call, const headgate_attention_options& options) {
  headgate_attention_outputs outputs = HEADGATE_ATTENTION_OUTPUTS_INIT;
  outputs = tensors_to_c<kAttentionOutputs>(outputs, call.out);
  const headgate_attention_inputs inputs = c_inputs(call.in);
  return headgate_attention_forward(&outputs, &inputs, &options);
}

headgate_status forward_by_c(const SampleCall& call) { return forward_by_c(call, c_options(call.options)); }

headgate_status backward_by_c(const SampleCall& call) {
  headgate_attention_gradients gradients = HEADGATE_ATTENTION_GRADIENTS_INIT;
  gradients = tensors_to_c<kAttentionGradients>(gradients, call.grad);
  headgate_attention_saved saved = HEADGATE_ATTENTION_SAVED_INIT;
  saved = tensors_to_c<kSavedTensors>(saved, call.saved);
  headgate_attention_incoming incoming = HEADGATE_ATTENTION_INCOMING_INIT;
  incoming = tensors_to_c<kIncomingTensors>(incoming, call.incoming);
  const headgate_attention_inputs inputs = c_inputs(call.in);
  const headgate_attention_options options = c_options(call.options);
  return headgate_attention_backward(&gradients, &inputs, &saved, &incoming, &options);
}

headgate_status statistics_by_c(const SampleCall& call) {
  headgate_attention_statistics_outputs outputs = HEADGATE_ATTENTION_STATISTICS_OUTPUTS_INIT;
  outputs = tensors_to_c<kStatisticsOutputs>(outputs, call.statistics);
  headgate_statistics_selection selection = HEADGATE_STATISTICS_SELECTION_INIT;
  selection.keys = to_c(call.selection.keys);
  selection.queries = to_c(call.selection.queries);
  selection.window = call.selection.window;
  const headgate_attention_inputs inputs = c_inputs(call.in);
  const headgate_attention_options options = c_options(call.options);
  const headgate_const_tensor lse = to_c(call.saved.lse);
  return headgate_attention_statistics(&outputs, &inputs, &lse, &selection, &options);
}

/// Makes a call on random numbers, the same for the same seed, with options that are not defaults.
struct RandomCall : SampleCall {
  RandomCall(DType dtype, std::uint32_t seed) : SampleCall(dtype), random(seed) {
    for (const ConstTensorView& view : {in.q, in.k, in.v, in.gate, in.bias, incoming.dy, incoming.dlse}) fill(view);
    options.scale = 0.7;
    options.softcap = 3.0;
    options.causality = Causality::causal;
    options.window_left = 3;
    options.gate_fn = GateFn::silu;
    saved = {out.y, out.lse, out.attn};
  }

  void fill(const ConstTensorView& view) {
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      store_element(const_cast<void*>(view.data), view.dtype, i, normal(random));
    }
  }

  std::mt19937 random;
};

class CApiCase : public ::testing::TestWithParam<DType> {};

TEST_P(CApiCase, Attention_BothPasses_HasTheBitsOfCpp) {
  const RandomCall cpp(GetParam(), 42);
  const RandomCall c(GetParam(), 42);
  const RandomCall before(GetParam(), 42);
  cpp.forward();
  ASSERT_EQ(forward_by_c(c), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  EXPECT_FALSE(c.unchanged_since(before.snapshot()));
  const auto between = c.snapshot();
  cpp.backward();
  ASSERT_EQ(backward_by_c(c), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  EXPECT_FALSE(c.unchanged_since(between));
  const auto after = c.snapshot();
  cpp.look();
  ASSERT_EQ(statistics_by_c(c), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  EXPECT_FALSE(c.unchanged_since(after));
}

TEST_P(CApiCase, Attention_LseWithoutValues_HasTheBitsOfCpp) {
  RandomCall cpp(GetParam(), 42), c(GetParam(), 42);
  const auto before = c.snapshot();
  for (RandomCall* call : {&cpp, &c}) {
    call->in.v = {};
    call->out = {.lse = call->out.lse, .max_logit = call->out.max_logit};
    call->out.max_logit.shape = {kB, kHq, 1, 1};
  }
  cpp.forward();
  ASSERT_EQ(forward_by_c(c), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  EXPECT_FALSE(c.unchanged_since(before));
}

INSTANTIATE_TEST_SUITE_P(DTypes, CApiCase, ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

/// Computes ranges of keys, their merge and its gradients.
struct MergeCall : RandomCall {
  static constexpr std::size_t kParts = 2;
  static constexpr std::int64_t kCut = 2;
  TensorView attn[kParts], lse[kParts], d_attn[kParts], d_lse[kParts];

  MergeCall() : RandomCall(DType::f32, 11) {
    out.weights = out.max_logit = {};
    in.key_indices = {};  // ranges of keys refuse lists
    for (auto* views : {attn, d_attn}) {
      for (std::size_t n = 0; n < kParts; ++n) views[n] = tensor(DType::f32, {kB, kHq, kT, kDv});
    }
    for (auto* views : {lse, d_lse}) {
      for (std::size_t n = 0; n < kParts; ++n) views[n] = tensor(DType::f32, {kB, kHq, kT, 1});
    }
  }

  std::pair<std::int64_t, std::int64_t> keys(std::size_t n) const {
    return n == 0 ? std::pair{std::int64_t{0}, kCut} : std::pair{kCut, kS};
  }

  void by_cpp() const {
    std::vector<MergePart> parts;
    std::vector<MergePartGradients> gradients;
    for (std::size_t n = 0; n < kParts; ++n) {
      KeyRangeVectors vectors;
      AttentionInputs range = narrow_keys(in, keys(n).first, keys(n).second, vectors);
      range.gate = {};
      AttentionOutputs outputs;
      outputs.y = attn[n];
      outputs.lse = lse[n];
      attention_forward(outputs, range, options);
      parts.push_back({attn[n], lse[n]});
      gradients.push_back({d_attn[n], d_lse[n]});
    }
    attention_merge(out, parts, in.gate, options);
    attention_merge_backward(gradients, grad.dgate, parts, in.gate, incoming, options);
  }

  void by_c() const {
    const headgate_attention_inputs inputs = c_inputs(in);
    const headgate_attention_options all = c_options(options);
    std::vector<headgate_merge_part> parts;
    std::vector<headgate_merge_part_gradients> gradients;
    for (std::size_t n = 0; n < kParts; ++n) {
      std::int64_t offsets[kB], lengths[kB];
      headgate_attention_inputs range = HEADGATE_ATTENTION_INPUTS_INIT;
      ASSERT_EQ(headgate_narrow_keys(&range, &inputs, keys(n).first, keys(n).second, offsets, lengths), HEADGATE_OK)
          << headgate_last_error();
      range.gate = HEADGATE_ABSENT;
      headgate_attention_outputs outputs = HEADGATE_ATTENTION_OUTPUTS_INIT;
      outputs.y = to_c(attn[n]);
      outputs.lse = to_c(lse[n]);
      ASSERT_EQ(headgate_attention_forward(&outputs, &range, &all), HEADGATE_OK) << headgate_last_error();
      parts.push_back({to_c(ConstTensorView(attn[n])), to_c(ConstTensorView(lse[n]))});
      gradients.push_back({to_c(d_attn[n]), to_c(d_lse[n])});
    }
    headgate_attention_outputs outputs = HEADGATE_ATTENTION_OUTPUTS_INIT;
    outputs.y = to_c(out.y);
    outputs.lse = to_c(out.lse);
    outputs.attn = to_c(out.attn);
    headgate_attention_incoming c_incoming = HEADGATE_ATTENTION_INCOMING_INIT;
    c_incoming.dy = to_c(incoming.dy);
    c_incoming.dlse = to_c(incoming.dlse);
    const headgate_tensor dgate = to_c(grad.dgate);
    ASSERT_EQ(headgate_attention_merge(&outputs, parts.data(), kParts, &inputs.gate, &all), HEADGATE_OK)
        << headgate_last_error();
    ASSERT_EQ(headgate_attention_merge_backward(gradients.data(), &dgate, parts.data(), kParts, &inputs.gate,
                                                &c_incoming, &all),
              HEADGATE_OK)
        << headgate_last_error();
  }
};

TEST(CApi, Parts_Merged_HaveTheBitsOfCpp) {
  const MergeCall cpp, c, before;
  cpp.by_cpp();
  c.by_c();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  EXPECT_FALSE(c.unchanged_since(before.snapshot()));
}

TEST(CApi, Merge_NullArgument_IsRefusedByName) {
  const MergeCall call;
  headgate_attention_outputs outputs = HEADGATE_ATTENTION_OUTPUTS_INIT;
  outputs.y = to_c(call.out.y);
  EXPECT_EQ(headgate_attention_merge(&outputs, nullptr, 1, nullptr, nullptr), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(), "headgate_attention_merge: parts is null but count is 1");
  EXPECT_EQ(headgate_attention_merge(&outputs, nullptr, 0, nullptr, nullptr), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(), "headgate_attention_merge: parts is empty but must have at least one part");
  const headgate_attention_inputs inputs = c_inputs(call.in);
  headgate_attention_inputs range = HEADGATE_ATTENTION_INPUTS_INIT;
  std::int64_t offsets[kB];
  EXPECT_EQ(headgate_narrow_keys(&range, &inputs, 0, 2, offsets, nullptr), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(), "headgate_narrow_keys: key_lengths is null but receives 2 numbers");
}

TEST(CApi, NarrowKeys_KeyIndices_AreRefusedByName) {
  const MergeCall call;
  headgate_attention_inputs inputs = c_inputs(call.in), range = HEADGATE_ATTENTION_INPUTS_INIT;
  const std::int32_t entry = 0;
  inputs.key_indices = headgate_make_const_tensor(&entry, HEADGATE_DTYPE_I32, 1, 1, 1, 1);
  std::int64_t offsets[kB], lengths[kB];
  EXPECT_EQ(headgate_narrow_keys(&range, &inputs, 0, 2, offsets, lengths), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(headgate_last_error(),
               "headgate_narrow_keys: key_indices is given but its entries number all keys: make lists of the range's "
               "keys, numbered from 0");
}

TEST(CApi, NarrowKeys_FailingCall_WritesNothing) {
  const MergeCall call;
  const headgate_attention_inputs inputs = c_inputs(call.in);
  const headgate_attention_inputs empty = HEADGATE_ATTENTION_INPUTS_INIT;
  headgate_attention_inputs range = empty;
  std::int64_t offsets[kB] = {777, 777}, lengths[kB] = {777, 777};
  EXPECT_EQ(headgate_narrow_keys(&range, &inputs, 0, 2, offsets, nullptr), HEADGATE_INVALID_ARGUMENT);
  EXPECT_EQ(headgate_narrow_keys(&range, &inputs, 0, 2, nullptr, lengths), HEADGATE_INVALID_ARGUMENT);
  EXPECT_EQ(std::memcmp(&range, &empty, sizeof range), 0);
  EXPECT_TRUE(offsets[0] == 777 && offsets[1] == 777 && lengths[0] == 777 && lengths[1] == 777);
}

TEST(CApi, NarrowKeys_StructSize_LimitsWhatIsWritten) {
  constexpr std::size_t kOlder = offsetof(headgate_attention_inputs, query_offsets),
                        kNewer = sizeof(headgate_attention_inputs) + 80;
  const MergeCall call;
  const headgate_attention_inputs inputs = c_inputs(call.in);
  std::int64_t offsets[kB], lengths[kB];
  struct {
    headgate_attention_inputs known;
    std::byte later[160];
  } range;
  const auto narrow = [&](std::size_t size) {
    std::memset(&range, 0xAB, sizeof range);
    std::memset(&range, 0, std::min(size, kNewer));
    range.known.struct_size = size;
    return headgate_narrow_keys(&range.known, &inputs, 0, 2, offsets, lengths);
  };
  const auto unwritten_from = [&](std::size_t size) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&range);
    return std::all_of(bytes + size, bytes + sizeof range, [](unsigned char byte) { return byte == 0xAB; });
  };
  EXPECT_EQ(narrow(0), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("range.struct_size is 0 but must be"), std::string::npos);
  EXPECT_EQ(narrow(kOlder), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("but this call sets members beyond it"), std::string::npos);
  EXPECT_TRUE(unwritten_from(kOlder));
  EXPECT_EQ(narrow(kNewer), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(range.known.struct_size, kNewer);
  EXPECT_TRUE(unwritten_from(kNewer));
}

TEST(CApi, NarrowKeys_Int8Keys_HasTheRangeOfCpp) {
  MergeCall call;
  call.in.k.dtype = call.in.v.dtype = DType::i8;
  for (ConstTensorView* scale : {&call.in.k_scale, &call.in.v_scale}) {
    *scale = call.tensor(DType::f32, {kB, kHkv, kS, 1});
  }
  KeyRangeVectors vectors;
  const headgate_attention_inputs cpp = c_inputs(narrow_keys(call.in, 1, kS, vectors));
  headgate_attention_inputs inputs = c_inputs(call.in);
  std::int64_t offsets[kB], lengths[kB];
  ASSERT_EQ(headgate_narrow_keys(&inputs, &inputs, 1, kS, offsets, lengths), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(std::equal(offsets, offsets + kB, vectors.query_offsets.begin()));
  EXPECT_TRUE(std::equal(lengths, lengths + kB, vectors.key_lengths.begin()));
  EXPECT_TRUE(inputs.query_offsets.data == offsets && inputs.key_lengths.data == lengths);
  inputs.query_offsets.data = cpp.query_offsets.data;
  inputs.key_lengths.data = cpp.key_lengths.data;
  EXPECT_EQ(std::memcmp(&inputs, &cpp, sizeof cpp), 0);
}

TEST(CApi, Caches_PagedAndInt8_HaveTheBitsOfCpp) {
  const auto as_cache = [](RandomCall& call) {
    call.in.k.dtype = call.in.v.dtype = DType::i8;
    for (ConstTensorView* scale : {&call.in.k_scale, &call.in.v_scale}) {
      *scale = call.tensor(DType::f32, {kB, kHkv, kS, 1});
      call.fill(*scale);
    }
    call.in.block_table = call.vector<std::int32_t>({1, 0});
    call.in.block_table.shape = {1, 1, kB, 1};
    call.in.block_table.strides = {2, 2, 1, 1};
  };
  RandomCall cpp(DType::f32, 11);
  RandomCall c(DType::f32, 11);
  as_cache(cpp);
  as_cache(c);
  const auto before = c.snapshot();
  cpp.forward();
  ASSERT_EQ(forward_by_c(c), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  EXPECT_FALSE(c.unchanged_since(before));
  EXPECT_EQ(backward_by_c(c), HEADGATE_INVALID_ARGUMENT);
}

TEST(CApi, Options_ZerosWithTheirSize_AreTheDefaultsOfCpp) {
  RandomCall cpp(DType::f32, 7);
  cpp.options = AttentionOptions{};
  cpp.forward();
  headgate_attention_options zeros{};
  zeros.struct_size = sizeof(zeros);
  headgate_attention_options own_key_alone = zeros;
  own_key_alone.has_window = 1;
  for (const headgate_attention_options& options :
       {zeros, headgate_attention_options HEADGATE_ATTENTION_OPTIONS_INIT, own_key_alone}) {
    const RandomCall c(DType::f32, 7);
    ASSERT_EQ(forward_by_c(c, options), HEADGATE_OK) << headgate_last_error();
    EXPECT_EQ(c.unchanged_since(cpp.snapshot()), options.has_window == 0);
  }
}

TEST(CApi, GateFunction_EachOfCpp_HasItsNumber) {
  for (const auto& [gate_fn, word] : Words<GateFn>::kAll) {
    RandomCall cpp(DType::f32, 7);
    RandomCall c(DType::f32, 7);
    cpp.options.gate_fn = c.options.gate_fn = gate_fn;
    cpp.forward();
    ASSERT_EQ(forward_by_c(c), HEADGATE_OK) << headgate_last_error();
    EXPECT_TRUE(c.unchanged_since(cpp.snapshot())) << static_cast<int>(gate_fn);
  }
}

TEST(CApi, GateThreshold_AnyValue_ClosesTheRowsOfCpp) {
  RandomCall cpp(DType::f32, 7);
  RandomCall c(DType::f32, 7);
  cpp.options.gate_threshold = c.options.gate_threshold = 0.6;
  cpp.forward();
  const auto* lse = static_cast<const float*>(cpp.out.lse.data);
  const auto closed = std::count(lse, lse + kB * kHq * kT, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(closed > 0 && closed < kB * kHq * kT) << closed;
  ASSERT_EQ(forward_by_c(c), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  c.saved.lse = c.out.lse;
  c.options.gate_threshold = 0.0;
  EXPECT_EQ(backward_by_c(c), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("] is inf: gate_threshold left this row out"), std::string::npos);
}

TEST(CApi, Precision_Native16_HasTheBitsOfCpp) {
  RandomCall cpp(DType::bf16, 7);
  RandomCall c(DType::bf16, 7);
  cpp.options.precision = Precision::native16;
  c.options = cpp.options;
  cpp.forward();
  ASSERT_EQ(forward_by_c(c), HEADGATE_OK) << headgate_last_error();
  EXPECT_TRUE(c.unchanged_since(cpp.snapshot()));
  RandomCall f32(DType::f32, 7);
  f32.options.precision = Precision::native16;
  EXPECT_EQ(forward_by_c(f32), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("precision is native16 but q is f32, not bf16"), std::string::npos);
}

TEST(CApi, Native16Products_ListedAndForced_AgreeWithCpp) {
  const char* now = nullptr;
  for (const std::string& name : supported_native16_products()) {
    ASSERT_EQ(headgate_set_native16_products(name.c_str()), HEADGATE_OK);
    ASSERT_EQ(headgate_native16_products(&now), HEADGATE_OK);
    EXPECT_EQ(now, active_target() == "avx3" ? name : "");
  }
  ASSERT_EQ(headgate_set_native16_products(nullptr), HEADGATE_OK);
  ASSERT_EQ(headgate_native16_products(&now), HEADGATE_OK);
  EXPECT_EQ(now, native16_products());
  EXPECT_EQ(headgate_set_native16_products("abacus"), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("set_native16_products names 'abacus'"), std::string::npos);
}

TEST(CApi, Message_BadArgument_IsThatOfCppWithTheNameOfC) {
  SampleCall call;
  call.in.gate.shape[2] = 1;
  const auto before = call.snapshot();
  std::string cpp;
  try {
    call.backward();
  } catch (const Error& error) {
    cpp = error.what();
  }
  EXPECT_EQ(backward_by_c(call), HEADGATE_INVALID_ARGUMENT);
  EXPECT_EQ(headgate_last_error(), "headgate_" + cpp);
  EXPECT_TRUE(call.unchanged_since(before));
}

TEST(CApi, Runtime_ListsVersionAndThreads_AgreeWithCpp) {
  EXPECT_STREQ(headgate_version(), version());
  EXPECT_EQ(headgate_default_threads(), default_threads());
  const char* active = nullptr;
  ASSERT_EQ(headgate_active_target(&active), HEADGATE_OK);
  EXPECT_EQ(active, active_target());
  for (const auto& [list, want] : {std::pair{&headgate_compiled_targets, compiled_targets()},
                                   std::pair{&headgate_supported_targets, supported_targets()},
                                   std::pair{&headgate_supported_native16_products, supported_native16_products()},
                                   std::pair{&headgate_supported_backends, supported_backends()}}) {
    std::vector<const char*> names(want.size());
    std::size_t count = 0;
    ASSERT_EQ(list(names.data(), names.size(), &count), HEADGATE_OK);
    EXPECT_EQ(std::vector<std::string>(names.begin(), names.end()), want);
    EXPECT_EQ(count, want.size());
  }
}

TEST(CApi, Backend_Forced_IsActiveInCpp) {
  for (const std::string& name : supported_backends()) EXPECT_EQ(headgate_set_backend(name.c_str()), HEADGATE_OK);
  EXPECT_EQ(headgate_set_backend("abacus"), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("'abacus'"), std::string::npos);
  EXPECT_EQ(headgate_set_backend(nullptr), HEADGATE_OK);
}

TEST(CApi, Options_TargetAndBackend_AreUsed) {
  const RandomCall call(DType::f32, 7);
  headgate_attention_options options = c_options(call.options);
  for (const std::string& name : supported_targets()) {
    options.target = name.c_str();
    options.backend = "cpu";
    EXPECT_EQ(forward_by_c(call, options), HEADGATE_OK) << headgate_last_error();
  }
  options.target = "avx9";
  EXPECT_EQ(forward_by_c(call, options), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("options.target is 'avx9'"), std::string::npos)
      << headgate_last_error();
  options.target = "";
  options.backend = "abacus";
  EXPECT_EQ(forward_by_c(call, options), HEADGATE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headgate_last_error()).find("'abacus'"), std::string::npos) << headgate_last_error();
}

/// Returns the bytes that this process has from malloc; 0 under a sanitizer with its own allocator.
std::size_t bytes_held() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(CApi, Workspace_OfTheThread_IsReleased) {
  RandomCall call(DType::f32, 7);
  ASSERT_EQ(forward_by_c(call), HEADGATE_OK) << headgate_last_error();
  const std::size_t kept = bytes_held();
  if (kept == 0) GTEST_SKIP() << "malloc belongs to the sanitizer";
  headgate_release_workspace();
  EXPECT_LT(bytes_held(), kept);
}

TEST(LastError, Message_OfAnotherThread_IsNotSeen) {
  ASSERT_EQ(headgate_set_target("abacus"), HEADGATE_INVALID_ARGUMENT);
  const std::string mine = headgate_last_error();
  std::string at_start = "unset";
  std::string after = "unset";
  std::thread([&] {
    at_start = headgate_last_error();
    headgate_active_target(nullptr);
    after = headgate_last_error();
  }).join();
  EXPECT_EQ(at_start, "");
  EXPECT_NE(after.find("name is null"), std::string::npos);
  EXPECT_NE(mine.find("abacus"), std::string::npos);
  EXPECT_EQ(headgate_last_error(), mine);
  ASSERT_EQ(headgate_set_target(""), HEADGATE_OK);
  EXPECT_STREQ(headgate_last_error(), "");
}

}  // namespace
}  // namespace headgate::testing

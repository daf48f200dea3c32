// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/count_fields.hpp"
#include "library/core/gated_norm_rows.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "library/core/short_convolution_rows.hpp"

namespace headgate {
namespace {

template <class Struct, typename Member>
const void* address(const Struct& object, Member Struct::*member) {
  return &(object.*member);
}

/// Row n is that of member n of both structs: rows whose members have been confused are in another order.
template <class C, class Rows>
void expect_order_of_structs(const Rows& rows) {
  const typename Rows::value_type::Struct cpp{};
  const C c{};
  std::set<std::string_view> names;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    names.insert(rows[n].name);
    if (n == 0) continue;
    EXPECT_LT(address(cpp, rows[n - 1].member), address(cpp, rows[n].member)) << rows[n].name;
    EXPECT_LT(address(c, rows[n - 1].c_member), address(c, rows[n].c_member)) << rows[n].name;
  }
  EXPECT_EQ(names.size(), rows.size());
}

/// A gradient is named after the input that it is of.
template <class Rows>
void expect_names_of_gradients(const Rows& gradients) {
  for (const auto& row : gradients) {
    EXPECT_EQ(std::string(row.name), std::string("d") + input_of_gradient(row).name);
  }
}

template <class Rows>
void expect_required_first(const Rows& inputs) {
  bool required = true;
  for (const auto& row : inputs) {
    EXPECT_LE(row.traits.required, required) << row.name;
    required = row.traits.required;
  }
}

/// The rows are all fields of Options and of COptions, each once; `others` fields of COptions are no options.
template <class Options, class COptions, class Rows>
void expect_all_options(const Rows& table, std::size_t others) {
  Options options;
  const COptions c{};
  std::set<const void*> members, c_members;
  std::set<std::string_view> names;
  std::size_t rows = 0, of_context = 0;
  for_each_row(table, [&](const auto& row) {
    members.insert(&row.of(options));
    c_members.insert(address(c, row.c_member));
    names.insert(row.text.name);
    if (row.part == OptionOf::execution) ++of_context;
    ++rows;
  });
  EXPECT_EQ(members.size(), rows);
  EXPECT_EQ(c_members.size(), rows);
  EXPECT_EQ(names.size(), rows);
  // `context` is one field of the options; its `cancelled` is for C++ alone.
  EXPECT_EQ(rows - of_context + 1, testing::count_fields<Options>());
  EXPECT_EQ(of_context + 1, testing::count_fields<ExecutionContext>());
  EXPECT_EQ(rows + others, testing::count_fields<COptions>());
}

TEST(AttentionTensors, Rows_AreInTheOrderOfBothStructs) {
  expect_order_of_structs<headgate_attention_inputs>(kAttentionInputs);
  expect_order_of_structs<headgate_attention_outputs>(kAttentionOutputs);
  expect_order_of_structs<headgate_attention_saved>(kSavedTensors);
  expect_order_of_structs<headgate_attention_incoming>(kIncomingTensors);
  expect_order_of_structs<headgate_attention_gradients>(kAttentionGradients);
}

TEST(AttentionTensors, Gradient_IsNamedAfterItsInput) { expect_names_of_gradients(kAttentionGradients); }

TEST(AttentionTensors, RequiredInputs_StandFirst) { expect_required_first(kAttentionInputs); }

TEST(AttentionOptions, Rows_AreAllMembersOnce) {
  // struct_size, has_scale, has_window and reserved are no options.
  expect_all_options<AttentionOptions, headgate_attention_options>(kAttentionOptions, 4);
}

TEST(LinearTensors, Rows_AreInTheOrderOfBothStructs) {
  expect_order_of_structs<headgate_linear_attention_inputs>(kLinearInputs);
  expect_order_of_structs<headgate_linear_attention_outputs>(kLinearOutputs);
  expect_order_of_structs<headgate_linear_attention_incoming>(kLinearIncoming);
  expect_order_of_structs<headgate_linear_attention_gradients>(kLinearGradients);
  expect_order_of_structs<headgate_linear_attention_weights_outputs>(kLinearWeights);
  expect_order_of_structs<headgate_linear_attention_statistics_outputs>(kLinearStatistics);
}

TEST(LinearTensors, Gradient_IsNamedAfterItsInput) { expect_names_of_gradients(kLinearGradients); }

TEST(LinearTensors, RequiredInputs_StandFirst) { expect_required_first(kLinearInputs); }

TEST(LinearOptions, Rows_AreAllMembersOnce) {
  // struct_size, has_scale, has_l2_norm and reserved are no options.
  expect_all_options<LinearAttentionOptions, headgate_linear_attention_options>(kLinearOptions, 4);
}

TEST(ConvolutionTensors, Rows_AreInTheOrderOfBothStructs) {
  expect_order_of_structs<headgate_short_convolution_inputs>(kConvolutionInputs);
  expect_order_of_structs<headgate_short_convolution_outputs>(kConvolutionOutputs);
  expect_order_of_structs<headgate_short_convolution_incoming>(kConvolutionIncoming);
  expect_order_of_structs<headgate_short_convolution_gradients>(kConvolutionGradients);
}

TEST(ConvolutionTensors, Gradient_IsNamedAfterItsInput) { expect_names_of_gradients(kConvolutionGradients); }

TEST(ConvolutionTensors, RequiredInputs_StandFirst) { expect_required_first(kConvolutionInputs); }

TEST(ConvolutionOptions, Rows_AreAllMembersOnce) {
  // struct_size is no option.
  expect_all_options<ShortConvolutionOptions, headgate_short_convolution_options>(kConvolutionOptions, 1);
}

TEST(ConvolutionOptions, Activation_WordsAreThoseThatCallsTake) {
  const auto& activation = row_of<kConvolutionOptions, &ShortConvolutionOptions::activation>();
  EXPECT_EQ(parse_option("activation", "silu", activation), GateFn::silu);
  EXPECT_EQ(parse_option("activation", "none", activation), GateFn::none);
  for (const std::string word : {"sigmoid", "sil", "silu, none", ""}) {
    try {
      parse_option("activation", word, activation);
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), "activation: '" + word + "' is none of silu, none");
    }
  }
}

TEST(NormTensors, Rows_AreInTheOrderOfBothStructs) {
  expect_order_of_structs<headgate_gated_norm_inputs>(kNormInputs);
  expect_order_of_structs<headgate_gated_norm_gradients>(kNormGradients);
}

TEST(NormTensors, Gradient_IsNamedAfterItsInput) { expect_names_of_gradients(kNormGradients); }

TEST(NormTensors, RequiredInputs_StandFirst) { expect_required_first(kNormInputs); }

TEST(NormOptions, Rows_AreAllMembersOnce) {
  // struct_size, has_eps and reserved are no options.
  expect_all_options<GatedNormOptions, headgate_gated_norm_options>(kNormOptions, 3);
}

TEST(OperationRows, Layout_IsOfOperationsOnHeads) {
  EXPECT_TRUE(has_layout(kAttentionInputs) && has_layout(kLinearInputs) && has_layout(kNormInputs));
  EXPECT_FALSE(has_layout(kConvolutionInputs));
}

}  // namespace
}  // namespace headgate

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <array>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/format.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/rows.hpp"
#include "library/core/tensor_rows.hpp"
#include "python/headgate/array_views.hpp"

// Converts XLA's FFI calls to calls of libheadgate, and runs these. The code iterates over the tables of an operation.
// A struct in jax_operations.hpp holds the operation's tables.

namespace headgate::python::jax {

namespace ffi = xla::ffi;

/// The struct of tensor views whose members the table kRows describes, such as AttentionInputs.
template <const auto& kRows>
using ViewsOf = typename std::remove_cvref_t<decltype(kRows[0])>::Struct;

/// Maps an XLA element type to a dtype.
struct ElementType {
  ffi::DataType xla;
  DType dtype;
};
inline constexpr std::array<ElementType, 8> kElementTypes{{{ffi::F32, DType::f32},
                                                           {ffi::F64, DType::f64},
                                                           {ffi::BF16, DType::bf16},
                                                           {ffi::F16, DType::f16},
                                                           {ffi::PRED, DType::boolean},
                                                           {ffi::S32, DType::i32},
                                                           {ffi::S64, DType::i64},
                                                           {ffi::S8, DType::i8}}};

/// Describes a contiguous buffer of XLA. A u32 buffer stores each f64 number as two integers in its last dimension,
/// since JAX has no f64 by default.
inline StridedArray array_of(const char* function, const char* name, const ffi::AnyBuffer& buffer, ArrayKind kind,
                             Layout layout) {
  StridedArray array;
  array.data = buffer.untyped_data();
  array.rank = buffer.dimensions().size();
  const ffi::DataType type = buffer.element_type();
  if (type == ffi::U32 && array.rank > 0) {
    array.dtype = DType::f64;
    --array.rank;
  }
  for (const ElementType& row : kElementTypes) {
    if (row.xla == type) array.dtype = row.dtype;
  }
  const auto sizes = buffer.dimensions();
  if (array.rank > StridedArray::kMaxRank) refuse_rank(function, name, {sizes.begin(), sizes.size()}, kind, layout);
  std::int64_t stride = 1;
  for (std::size_t d = array.rank; d-- > 0;) {
    array.shape[d] = sizes[d];
    array.strides[d] = stride;
    stride *= sizes[d];
  }
  return array;
}

/// Returns the kind of an input's array. If the call has a block table, the kind is `pages` for inputs that can be
/// stored in pages, such as k and v.
template <class Inputs, class Row>
ArrayKind kind_of(const Row& row, bool has_pages) {
  if constexpr (requires { &Inputs::block_table; }) {
    if (has_pages && row.traits.in_pages) return ArrayKind::pages;
  }
  return array_kind(row.kind);
}

/// Returns whether bit `i` of `mask` is set. Bit masks select rows of a table.
inline bool has_bit(std::int64_t mask, std::size_t i) { return ((mask >> i) & 1) != 0; }

/// Returns whether the inputs in the bit mask `given` include the block table.
template <const auto& kInputs>
bool has_block_table(std::int64_t given) {
  using Inputs = ViewsOf<kInputs>;
  if constexpr (requires { &Inputs::block_table; }) {
    return has_bit(given, row_number(kInputs, &Inputs::block_table));
  } else {
    return false;
  }
}

// --- options --------------------------------------------------------------------------------------------------------

/// Reads the options of a call from its FFI attributes.
class Attributes {
 public:
  explicit Attributes(const ffi::Dictionary& attributes) : attributes_(attributes) {}

  template <typename T>
  std::optional<T> get(std::string_view name) const {
    using Stored = std::conditional_t<std::is_same_v<T, std::string>, std::string_view, T>;
    if (!attributes_.contains(name)) return std::nullopt;
    const ffi::ErrorOr<Stored> value = attributes_.get<Stored>(name);
    if (!value.has_value()) throw std::logic_error(value.error().message());
    return static_cast<T>(value.value());
  }

 private:
  const ffi::Dictionary& attributes_;
};

/// Sets an option from the attribute of the same name. Leaves the option unchanged if the attribute is missing.
template <class Row, class Options, class Source>
void read_option(const char* function, const Row& row, const Source& source, Options& options) {
  using Value = typename Row::Value;
  const std::string what = formatted("{}: {}", function, row.text.name);
  auto& member = row.of(options);
  if constexpr (Row::kIsName) {
    const std::optional<std::string> word = source.template get<std::string>(row.text.name);
    if (!word || word->empty()) return;
    try {
      if constexpr (std::is_same_v<Value, const Backend*>) {
        member = &find_backend(*word);
      } else {
        member = find_target(*word);
      }
    } catch (const Error& error) {
      throw Error(formatted("{}: {}", what, error.what()));
    }
  } else if constexpr (std::is_enum_v<Value>) {
    const std::optional<std::string> word = source.template get<std::string>(row.text.name);
    if (word) member = parse_option(what, *word, row);
  } else if constexpr (std::is_integral_v<Value>) {
    const std::optional<std::int64_t> value = source.template get<std::int64_t>(row.text.name);
    if (!value) return;
    if constexpr (std::is_same_v<Value, int>) {
      require(*value >= 1 && *value <= max_threads(), "{} is {} but must be 1 to {}, or None", what, *value,
              max_threads());
    }
    member = static_cast<Value>(*value);
  } else {
    const std::optional<double> value = source.template get<double>(row.text.name);
    if (value) member = *value;
  }
}

/// Reads every option of an operation.
template <class Operation, class Source>
typename Operation::Options read_options(const Source& source) {
  typename Operation::Options options;
  for_each_row(Operation::kOptions, [&](const auto& row) { read_option(Operation::kName, row, source, options); });
  return options;
}

template <class Operation, class Source>
Layout read_layout(const Source& source) {
  const std::optional<std::string> word = source.template get<std::string>("layout");
  return word ? parse_word<Layout>(formatted("{}: layout", Operation::kName), *word) : Layout::bhtd;
}

// --- operands -------------------------------------------------------------------------------------------------------

/// Holds the operands of a call and the memory of its results. Tables give the order of both.
template <class Operation>
class Buffers {
 public:
  Buffers(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results, Layout layout)
      : operands_(operands), results_(results), layout_(layout) {}

  /// Reads the next operands: one for each row of the table kRows whose bit is set in the bit mask `given`.
  template <const auto& kRows, class KindOf>
  ViewsOf<kRows> read(std::int64_t given, const KindOf& kind) {
    ViewsOf<kRows> views;
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      const auto& row = kRows[i];
      if (has_bit(given, i)) views.*row.member = view<ConstTensorView>(next_operand(), row.name, kind(row));
    }
    return views;
  }
  template <const auto& kRows>
  ViewsOf<kRows> read(std::int64_t given) {
    return read<kRows>(given, [](const auto& row) { return array_kind(row.kind); });
  }

  /// Returns views of the next results: one for each row of the table kRows whose bit is set in the bit mask `wanted`.
  template <const auto& kRows, class KindOf>
  ViewsOf<kRows> write(std::int64_t wanted, const KindOf& kind) {
    ViewsOf<kRows> views;
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      const auto& row = kRows[i];
      if (has_bit(wanted, i)) views.*row.member = view<TensorView>(next_result(), row.name, kind(row));
    }
    return views;
  }
  template <const auto& kRows>
  ViewsOf<kRows> write(std::int64_t wanted) {
    return write<kRows>(wanted, [](const auto& row) { return array_kind(row.kind); });
  }

  bool has_operand() const { return operand_ < operands_.size(); }
  bool has_result() const { return result_ < results_.size(); }

  ffi::AnyBuffer next_operand() {
    const auto buffer = operands_.template get<ffi::AnyBuffer>(operand_++);
    if (!buffer.has_value()) throw std::logic_error(buffer.error().message());
    return buffer.value();
  }
  ffi::AnyBuffer next_result() {
    const auto buffer = results_.template get<ffi::AnyBuffer>(result_++);
    if (!buffer.has_value()) throw std::logic_error(buffer.error().message());
    ffi::Result<ffi::AnyBuffer> result = buffer.value();
    return *result;
  }

 private:
  template <typename View>
  View view(const ffi::AnyBuffer& buffer, const char* name, ArrayKind kind) const {
    const StridedArray array = array_of(Operation::kName, name, buffer, kind, layout_);
    return view_of_array<View>(Operation::kName, name, array, kind, layout_);
  }

  const ffi::RemainingArgs& operands_;
  const ffi::RemainingRets& results_;
  Layout layout_;
  std::size_t operand_ = 0, result_ = 0;
};

/// Reads the inputs of a call. A folded call computes all examples of a vmap. In a folded call, stride 0 broadcasts an
/// input with a batch of 1 to the largest batch of the inputs.
template <class Operation>
ViewsOf<Operation::kInputs> read_inputs(Buffers<Operation>& buffers, const Attributes& attributes) {
  using Inputs = ViewsOf<Operation::kInputs>;
  const std::int64_t given = attributes.get<std::int64_t>("inputs").value_or(0);
  const bool pages = has_block_table<Operation::kInputs>(given);
  Inputs inputs = buffers.template read<Operation::kInputs>(
      given, [pages](const auto& row) { return kind_of<Inputs>(row, pages); });
  if (!attributes.get<bool>("folded").value_or(false)) return inputs;
  std::int64_t batch = 1;
  const auto has_batch = [](const auto& row) {
    return row.kind == TensorKind::heads || row.kind == TensorKind::channels;
  };
  for (const auto& row : Operation::kInputs) {
    if (has_batch(row)) batch = std::max(batch, (inputs.*row.member).shape[0]);
  }
  for (const auto& row : Operation::kInputs) {
    ConstTensorView& view = inputs.*row.member;
    if (!has_batch(row) || !view.present() || view.shape[0] != 1) continue;
    view.shape[0] = batch;
    view.strides[0] = 0;
  }
  return inputs;
}

/// Makes an error message begin with the operation's name and a colon. Replaces the name of a library function at the
/// beginning of `message`, as in "attention_forward: …". Prepends the operation's name if there is no such name.
template <class Operation>
std::string renamed(std::string_view message) {
  const std::size_t colon = message.find(": ");
  const bool has_name = colon != std::string_view::npos && colon < message.find(' ');
  return formatted("{}: {}", Operation::kName, has_name ? message.substr(colon + 2) : message);
}

/// Gives the calling thread the default floating-point environment until destruction. XLA's threads flush subnormal
/// numbers to zero. Without this class, results would depend on the thread that computes them.
class DefaultEnvironment {
 public:
  DefaultEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultEnvironment() { std::fesetenv(&before_); }
  DefaultEnvironment(const DefaultEnvironment&) = delete;
  DefaultEnvironment& operator=(const DefaultEnvironment&) = delete;

 private:
  std::fenv_t before_{};
};

/// Runs call() and converts its exceptions to XLA errors.
template <class Operation, class Call>
ffi::Error guarded(const Call& call) {
  const DefaultEnvironment environment;
  try {
    call();
    return ffi::Error::Success();
  } catch (const Error& error) {
    return ffi::Error::InvalidArgument(renamed<Operation>(error.what()));
  } catch (const std::bad_alloc&) {
    return {ffi::ErrorCode::kResourceExhausted, formatted("{}: out of memory", Operation::kName)};
  } catch (const std::exception& error) {
    return ffi::Error::Internal(formatted("{}: {}", Operation::kName, error.what()));
  }
}

/// Reads the dropout seed from an operand that holds one integer.
inline std::int64_t read_integer(const char* function, const ffi::AnyBuffer& buffer) {
  if (buffer.element_type() == ffi::S64) return *buffer.typed_data<std::int64_t>();
  if (buffer.element_type() == ffi::S32) return *buffer.typed_data<std::int32_t>();
  if (buffer.element_type() == ffi::U32) return *buffer.typed_data<std::uint32_t>();
  throw Error(formatted("{}: dropout_seed must be of int32, int64 or uint32", function));
}

/// Reads the options that are stored in operands. The only one is dropout_seed, if the attribute `traced_seed` is true.
template <class Operation>
void read_traced_options(Buffers<Operation>& buffers, const Attributes& attributes,
                         typename Operation::Options& options) {
  if constexpr (requires { options.dropout_seed; }) {
    if (attributes.get<bool>("traced_seed").value_or(false)) {
      options.dropout_seed = read_integer(Operation::kName, buffers.next_operand());
    }
  }
}

// --- passes ---------------------------------------------------------------------------------------------------------

/// Copies f64 numbers to a result of dtype f32 or f64 with the same number of elements.
inline void copy_numbers(const TensorView& from, const ffi::AnyBuffer& to) {
  const auto* numbers = static_cast<const double*>(from.data);
  const auto count = static_cast<std::size_t>(from.numel());
  if (to.element_type() == ffi::F64) {
    std::copy_n(numbers, count, to.typed_data<double>());
  } else {
    std::transform(numbers, numbers + count, to.typed_data<float>(), [](double x) { return static_cast<float>(x); });
  }
}

/// Handles a forward pass. Operands are the inputs in the bit mask `inputs`, then a traced seed if there is one.
/// Results are the outputs in the bit mask `outputs`. One more result, if present, receives a copy of lse as f32 or
/// f64.
template <class Operation>
ffi::Error forward(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary dictionary) {
  return guarded<Operation>([&] {
    const Attributes attributes(dictionary);
    auto options = read_options<Operation>(attributes);
    Buffers<Operation> buffers(operands, results, read_layout<Operation>(attributes));
    const auto inputs = read_inputs(buffers, attributes);
    read_traced_options(buffers, attributes, options);
    const std::int64_t wanted = attributes.get<std::int64_t>("outputs").value_or(1);
    const auto outputs = buffers.template write<Operation::kOutputs>(wanted);
    Operation::forward(outputs, inputs, options);
    if constexpr (requires { outputs.lse; }) {
      if (buffers.has_result()) copy_numbers(outputs.lse, buffers.next_result());
    }
  });
}

/// Handles a backward pass. The operands, in this order, are: incoming gradients in the bit mask `incoming`, saved
/// outputs in the bit mask `saved`, the inputs, and a traced seed if there is one. Results are the gradients in the bit
/// mask `gradients`.
template <class Operation>
ffi::Error backward(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary dictionary) {
  return guarded<Operation>([&] {
    const Attributes attributes(dictionary);
    auto options = read_options<Operation>(attributes);
    Buffers<Operation> buffers(operands, results, read_layout<Operation>(attributes));
    const auto incoming =
        buffers.template read<Operation::kIncoming>(attributes.get<std::int64_t>("incoming").value_or(1));
    typename Operation::Saved saved{};
    if constexpr (requires { Operation::kSaved; }) {
      saved = buffers.template read<Operation::kSaved>(attributes.get<std::int64_t>("saved").value_or(0));
    }
    const auto inputs = read_inputs(buffers, attributes);
    read_traced_options(buffers, attributes, options);
    const auto gradients =
        buffers.template write<Operation::kGradients>(attributes.get<std::int64_t>("gradients").value_or(0));
    Operation::backward(gradients, inputs, saved, incoming, options);
  });
}

}  // namespace headgate::python::jax

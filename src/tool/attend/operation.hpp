// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/tensor.hpp"
#include "library/core/check.hpp"
#include "library/core/tensor_rows.hpp"
#include "models/io/npy.hpp"
#include "models/io/output_guard.hpp"
#include "tool/attend/reader.hpp"

// Defines templates that run attention or linear attention on .npy files.
// `Tables` lists the operation's tensors in four tables: kInputs (q first), kIncoming, kOutputs and kGradients.

namespace headgate::attend {

/// Callback at the beginning of each stage. It receives the stage's name, such as "forward pass".
using OnStage = std::function<void(const char* stage)>;

/// Holds the paths of the operation's files. A path is empty if no file is given.
template <class Tables>
struct OperationFiles {
  PerTensor<std::string, Tables::kInputs> inputs;
  PerTensor<std::string, Tables::kIncoming> incoming;
  PerTensor<std::string, Tables::kOutputs> outputs;
  std::string grad_dir;

  const std::string& q() const { return inputs[Tables::kInputs.front().member]; }
};

/// Holds the arrays read from the files, converted to the dtypes of the computation.
template <class Tables>
struct OperationArrays {
  PerTensor<io::Array, Tables::kInputs> inputs;
  PerTensor<io::Array, Tables::kIncoming> incoming;

  const io::Array& q() const { return inputs[Tables::kInputs.front().member]; }
};

template <class Tables>
struct OperationResults {
  PerTensor<io::Array, Tables::kOutputs> outputs;
  PerTensor<io::Array, Tables::kGradients> gradients;
};

// --- files ----------------------------------------------------------------------------------------------------------

template <class Tables>
std::vector<io::NamedPath> input_paths(const OperationFiles<Tables>& files) {
  std::vector<io::NamedPath> paths;
  for (std::size_t n = 0; n < Tables::kInputs.size(); ++n) {
    paths.push_back({std::string(Tables::kInputs[n].file.option), files.inputs[n]});
  }
  for (std::size_t n = 0; n < Tables::kIncoming.size(); ++n) {
    paths.push_back({std::string(Tables::kIncoming[n].file.option), files.incoming[n]});
  }
  return paths;
}

template <class Row>
std::string gradient_path(const std::string& directory, const Row& gradient) {
  return (std::filesystem::path(directory) / (std::string(gradient.file.name) + ".npy")).string();
}

template <class Tables>
std::vector<io::NamedPath> output_paths(const OperationFiles<Tables>& files) {
  std::vector<io::NamedPath> paths;
  for (std::size_t n = 0; n < Tables::kOutputs.size(); ++n) {
    if (!files.outputs[n].empty()) paths.push_back({std::string(Tables::kOutputs[n].file.option), files.outputs[n]});
  }
  if (files.grad_dir.empty()) return paths;
  for (const auto& gradient : Tables::kGradients) {
    if (!files.inputs[gradient.gradient_of].empty()) {
      paths.push_back({"--grad-dir", gradient_path(files.grad_dir, gradient)});
    }
  }
  return paths;
}

/// Throws if
/// - two outputs have the same path,
/// - an output would overwrite an input, or
/// - a path is not writable.
/// Writes nothing. Accepts missing directories that `directories` lists: they are created together with their files.
void check_paths(const std::vector<io::NamedPath>& outputs, const std::vector<io::NamedPath>& inputs,
                 const std::vector<io::NamedPath>& directories);

/// Reads every input and incoming gradient. Converts q, and arrays that must have q's dtype, to `dtype`.
/// If `dtype` is empty, these arrays must share one dtype. Does not convert int8 arrays. Throws io::FileError or Error.
template <class Tables>
OperationArrays<Tables> read_arrays(const OperationFiles<Tables>& files, std::optional<DType> dtype) {
  Reader reader(files.q(), dtype);
  OperationArrays<Tables> arrays;
  for (std::size_t n = 0; n < Tables::kInputs.size(); ++n) {
    arrays.inputs[n] = n == 0 ? reader.q() : reader.read(Tables::kInputs[n], files.inputs[n]);
  }
  for (std::size_t n = 0; n < Tables::kIncoming.size(); ++n) {
    arrays.incoming[n] = reader.read(Tables::kIncoming[n], files.incoming[n]);
  }
  return arrays;
}

/// Adds a file with the contents of `array` to `writer`, if the array is present.
void add_file(io::NpyWriter& writer, const std::string& path, const io::Array& array);

/// Adds a file to `writer` for each output and gradient that is present and has a path in `files`.
template <class Tables>
void add_results(io::NpyWriter& writer, const OperationFiles<Tables>& files, const OperationResults<Tables>& results) {
  for (std::size_t n = 0; n < Tables::kOutputs.size(); ++n) {
    if (!files.outputs[n].empty()) add_file(writer, files.outputs[n], results.outputs[n]);
  }
  if (files.grad_dir.empty()) return;
  writer.make_directory(files.grad_dir);
  for (std::size_t n = 0; n < Tables::kGradients.size(); ++n) {
    add_file(writer, gradient_path(files.grad_dir, Tables::kGradients[n]), results.gradients[n]);
  }
}

// --- arrays ---------------------------------------------------------------------------------------------------------

/// Returns a four-dimensional view of `array`. Leading dimensions that the array lacks have size 1.
template <typename Array>
auto view4(Array& array) {
  std::conditional_t<std::is_const_v<Array>, ConstTensorView, TensorView> view;
  if (!array.present()) return view;
  view.data = array.data.get();
  view.dtype = array.dtype;
  view.shape = {1, 1, 1, 1};
  const std::size_t lead = 4 - array.shape.size();
  std::copy(array.shape.begin(), array.shape.end(), view.shape.begin() + static_cast<std::ptrdiff_t>(lead));
  view.strides = contiguous_strides(view.shape);
  std::copy(array.strides.begin(), array.strides.end(), view.strides.begin() + static_cast<std::ptrdiff_t>(lead));
  return view;
}

/// Returns a view (B,Hq,T,1) of an array (T), (Hq,T) or (B,Hq,T).
template <typename Array>
auto row_view(Array& array) {
  auto view = view4(array);
  if (!view.present()) return view;
  for (std::size_t d = 0; d < 3; ++d) {
    view.shape[d] = view.shape[d + 1];
    view.strides[d] = view.strides[d + 1];
  }
  view.shape[3] = 1;
  view.strides[3] = 1;
  return view;
}

/// Returns a view (N,Hq,1,1) of an array (N,Hq).
template <typename Array>
auto head_view(Array& array) {
  auto view = view4(array);
  if (!view.present()) return view;
  view.shape = {view.shape[2], view.shape[3], 1, 1};
  view.strides = {view.strides[2], view.strides[3], 1, 1};
  return view;
}

/// Returns a four-dimensional view of `array`. Uses row_view() for a tensor with one number per query, head_view() for
/// one number per head, and view4() for other tensors.
template <class Row, typename Array>
auto view_of(const Row& row, Array& array) {
  if (row.kind == TensorKind::rows_or_heads) return head_view(array);
  const bool by_query =
      row.kind == TensorKind::rows || (row.kind == TensorKind::query_numbers && array.shape.size() > 1);
  return by_query ? row_view(array) : view4(array);
}

/// Returns views of all arrays that the table `kRows` lists.
template <const auto& kRows>
auto views_of(const PerTensor<io::Array, kRows>& arrays) {
  typename std::remove_cvref_t<decltype(kRows[0])>::Struct views;
  for (std::size_t n = 0; n < kRows.size(); ++n) views.*kRows[n].member = view_of(kRows[n], arrays[n]);
  return views;
}

/// Throws io::FileError if the rank of q is not 2, 3 or 4.
void check_rank_of_q(const std::string& path, const io::Array& q);

/// Throws io::FileError if the array is present and has a wrong rank for a tensor of this kind.
/// For some kinds, the right rank depends on the rank of q.
void check_rank(TensorKind kind, std::string_view shape, const std::string& path, const io::Array& array,
                const io::Array& q);

/// Throws Error if `rows` contains a number outside [0, T), the range of query indices.
/// `option` is the command-line option that set `rows`.
void check_chosen_rows(const char* option, const std::vector<std::int64_t>& rows, const io::Array& q);

/// Throws io::FileError if B·H, the number of heads in all batches, exceeds 2^24.
void check_heads(const std::string& path, const io::Array& array);

template <class Tables>
void check_ranks(const OperationFiles<Tables>& files, const OperationArrays<Tables>& arrays) {
  check_rank_of_q(files.q(), arrays.q());
  for (std::size_t n = 0; n < Tables::kInputs.size(); ++n) {
    const auto& row = Tables::kInputs[n];
    check_rank(row.kind, row.shape, files.inputs[n], arrays.inputs[n], arrays.q());
  }
  for (std::size_t n = 0; n < Tables::kIncoming.size(); ++n) {
    const auto& row = Tables::kIncoming[n];
    check_rank(row.kind, row.shape, files.incoming[n], arrays.incoming[n], arrays.q());
  }
  for (std::size_t n = 0; n < Tables::kInputs.size(); ++n) {
    if (Tables::kInputs[n].traits.required) check_heads(files.inputs[n], arrays.inputs[n]);
  }
}

// --- messages -------------------------------------------------------------------------------------------------------

/// Removes the library function's name, such as "attention_forward: ", from the beginning of an error message.
/// The command line prints the subcommand's name instead, such as "headgate attend: ".
std::string without_function(std::string what);

/// Returns the path of the file that holds the argument named first in an error message.
/// For example, "bias has dtype i32" returns the path of the bias. Returns "" if the message names no argument.
template <class Tables>
std::string file_of_argument(const OperationFiles<Tables>& files, std::string_view message) {
  constexpr std::string_view kIncomingWord = "incoming ";
  const bool incoming_alone = message.starts_with(kIncomingWord);
  if (incoming_alone) message.remove_prefix(kIncomingWord.size());
  const std::string_view name = message.substr(0, message.find_first_of("[ "));
  for (std::size_t n = 0; n < Tables::kInputs.size() && !incoming_alone; ++n) {
    if (Tables::kInputs[n].name == name) return files.inputs[n];
  }
  for (std::size_t n = 0; n < Tables::kIncoming.size(); ++n) {
    if (Tables::kIncoming[n].name == name) return files.incoming[n];
  }
  return "";
}

/// Runs call(). Converts an Error about an argument from a file to an io::FileError with the path of the file.
template <class Tables, class Call>
void run_on_files(const OperationFiles<Tables>& files, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string what = without_function(error.what());
    const std::string file = file_of_argument(files, what);
    if (!file.empty()) io::fail(file, "{}", what);
    throw Error(what);
  }
}

}  // namespace headgate::attend

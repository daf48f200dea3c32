// SPDX-License-Identifier: Apache-2.0
#include "tool/attend/operation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "models/io/staged_file.hpp"

namespace headgate::attend {
namespace {

namespace fs = std::filesystem;

// Largest allowed number of heads in all batches, B·H. It limits the time of a call, which loops over all heads.
// The size of a file does not limit the time: if T is 0, a small file can declare any number of heads.
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 24;

void require_rank(const std::string& path, const io::Array& array, std::size_t low, std::size_t high,
                  const std::string& wanted) {
  if (!array.present() || (array.shape.size() >= low && array.shape.size() <= high)) return;
  io::fail(path, "has shape {} but must be {}", io::shape_text(array.shape), wanted);
}

}  // namespace

void check_paths(const std::vector<io::NamedPath>& outputs, const std::vector<io::NamedPath>& inputs,
                 const std::vector<io::NamedPath>& directories) {
  io::check_overwrites(outputs, inputs);
  std::vector<std::string> made_by;
  for (const auto& [option, directory] : directories) {
    std::error_code error;
    if (!directory.empty() && !fs::exists(directory, error)) made_by.push_back(option);
  }
  for (const auto& [option, path] : outputs) {
    const bool in_new_directory = std::find(made_by.begin(), made_by.end(), option) != made_by.end();
    io::check_writable(in_new_directory ? fs::path(path).parent_path().string() : path);
  }
}

void add_file(io::NpyWriter& writer, const std::string& path, const io::Array& array) {
  if (!array.present()) return;
  // Writes bf16 as f32, because NumPy has no bf16. f32 represents every bf16 value exactly.
  if (array.dtype == DType::bf16) {
    writer.add(path, converted(array, DType::f32));
  } else {
    writer.add(path, array);
  }
}

void check_rank_of_q(const std::string& path, const io::Array& q) {
  require_rank(path, q, 2, 4, "(T,D), (H,T,D) or (B,H,T,D)");
}

void check_rank(TensorKind kind, std::string_view shape, const std::string& path, const io::Array& array,
                const io::Array& q) {
  const std::size_t rank = q.shape.size();
  switch (kind) {
    case TensorKind::heads:
      return require_rank(path, array, rank, rank,
                          fmt::format("of rank {} as q, {}, is", rank, io::shape_text(q.shape)));
    case TensorKind::rows:
      return require_rank(path, array, rank - 1, rank - 1,
                          fmt::format("of rank {}, that of q, {}, less one", rank - 1, io::shape_text(q.shape)));
    case TensorKind::rows_or_heads: return require_rank(path, array, 2, 3, std::string(shape));
    case TensorKind::scores:
      return require_rank(path, array, 1, 4, fmt::format("{}, or only its last dimensions", shape));
    case TensorKind::vector:
      return require_rank(path, array, 1, 1, fmt::format("{},)", shape.substr(0, shape.size() - 1)));
    case TensorKind::table: return require_rank(path, array, 2, 2, std::string(shape));
    case TensorKind::state: return require_rank(path, array, 4, 4, std::string(shape));
    case TensorKind::channels:
    case TensorKind::channel_state: return require_rank(path, array, 3, 3, std::string(shape));
    case TensorKind::query_numbers: return require_rank(path, array, 1, 3, "(H), (H,T) or (B|1,H,T)");
    case TensorKind::head_numbers:
    case TensorKind::head_features: return require_rank(path, array, 1, 2, std::string(shape));
  }
}

void check_chosen_rows(const char* option, const std::vector<std::int64_t>& rows, const io::Array& q) {
  const std::int64_t T = q.shape[q.shape.size() - 2];
  for (const std::int64_t row : rows) {
    require(row >= 0 && row < T, "{} {}: there is no query {}; q has {}, numbered from 0", option, fmt::join(rows, ","),
            row, T);
  }
}

void check_heads(const std::string& path, const io::Array& array) {
  const ConstTensorView view = view4(array);
  if (view.shape[0] > kMaxHeads / std::max<std::int64_t>(view.shape[1], 1)) {
    io::fail(path, "has shape {}: more than {} heads in all", io::shape_text(array.shape), kMaxHeads);
  }
}

std::string without_function(std::string what) {
  for (const std::string prefix :
       {"attention_forward: ", "attention_backward: ", "attention_statistics: ", "linear_attention_forward: ",
        "linear_attention_backward: ", "linear_attention_weights: ", "linear_attention_statistics: "}) {
    if (what.starts_with(prefix)) what.erase(0, prefix.size());
  }
  return what;
}

}  // namespace headgate::attend

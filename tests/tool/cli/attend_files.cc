// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/attend_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/element.hpp"
#include "models/io/npy.hpp"
#include "models/io/scratch.hpp"
#include "tool/cli/tool.hpp"

namespace headgate::testing {
namespace {

/// Visits every index of `shape`, in the order in which a file of `order` holds elements.
template <typename Visit>
void for_each_index(const Shape& shape, Order order, const Visit& visit) {
  const std::int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
  for (std::int64_t n = 0; n < count; ++n) {
    Shape index{};
    std::int64_t rest = n;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t d = order == Order::c ? 3 - i : i;
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    visit(index);
  }
}

std::int64_t at(const ConstTensorView& view, const Shape& i) { return offset_of(view, i[0], i[1], i[2], i[3]); }

/// Returns the smallest rank that holds the problem.
std::size_t rank_of(const AttentionInputs& in) {
  if (in.q.shape[0] != 1 || in.block_table.present()) return 4;
  return in.q.shape[1] == 1 && in.k.shape[1] == 1 ? 2 : 3;
}

/// Returns the smallest rank that holds a (B|1,Hq|1,T|1,S) map.
std::size_t map_rank(const ConstTensorView& map) {
  if (map.shape[0] != 1) return 4;
  return map.shape[1] == 1 ? 2 : 3;
}

/// The rank of the file of an input beside a q of rank `rank`.
std::size_t rank_of(TensorKind kind, const ConstTensorView& view, std::size_t rank) {
  switch (kind) {
    case TensorKind::heads: return rank;
    case TensorKind::rows: return rank - 1;
    case TensorKind::scores: return map_rank(view);
    case TensorKind::vector: return 1;
    case TensorKind::query_numbers: return view.shape[0] != 1 ? 3 : are_sinks_of_heads(view) ? 1 : 2;
    case TensorKind::head_numbers: return view.shape[2] == 1 ? 1 : 2;
    case TensorKind::state: return 4;
    case TensorKind::channels:
    case TensorKind::channel_state: return 3;
    case TensorKind::rows_or_heads:
    case TensorKind::head_features:
    case TensorKind::table: break;
  }
  return 2;
}

/// An option's value as the command line takes it.
template <typename Value>
std::string text_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(word_of(value));
  } else if constexpr (std::is_floating_point_v<Value>) {
    return fmt::format("{:.17g}", value);
  } else if constexpr (std::is_integral_v<Value>) {
    return std::to_string(value);
  } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
    return text_of(*value);
  } else {
    throw std::logic_error("an option that the command line does not have");
  }
}

/// The options that say what the library's arguments say, and the files that they name.
std::vector<std::string> command_of(const AttentionInputs& in, const AttentionOptions& options,
                                    const std::string& directory, Order order) {
  const AttentionOptions defaults;
  std::vector<std::string> command = {"attend"};
  const auto say = [&command](const std::string& option, const std::string& value) {
    command.push_back(option);
    command.push_back(value);
  };
  const auto file = [&](const std::string& option, const ConstTensorView& view, std::size_t rank) {
    if (!view.present()) return;
    const std::string path = fmt::format("{}/{}.npy", directory, option.substr(2));
    write_npy(path, view, rank, order);
    say(option, path);
  };
  const std::size_t rank = rank_of(in);
  for (const AttentionInput& row : kAttentionInputs) {
    ConstTensorView view = in.*row.member;
    const std::size_t own_rank = rank_of(row.kind, view, rank);
    if (row.kind == TensorKind::query_numbers && own_rank > 1) {  // (B|1,Hq,T,1): the file has no last dimension
      std::rotate(view.shape.begin(), view.shape.begin() + 3, view.shape.end());
      std::rotate(view.strides.begin(), view.strides.begin() + 3, view.strides.end());
    }
    file(std::string(row.file.option), view, own_rank);
  }
  say("--out", directory + "/y.npy");
  if (in.q.dtype == DType::bf16) say("--dtype", "bf16");
  if (options.causality == Causality::causal) command.push_back("--causal");
  say("--window", fmt::format("{},{}", options.window_left, options.window_right));
  for_each_row(kAttentionOptions, [&](const auto& row) {
    const bool needs_gate = row.part == OptionOf::gate;
    if (row.text.option.empty() || row.of(options) == row.of(defaults) || (needs_gate && !in.gate.present())) return;
    say(std::string(row.text.option), text_of(row.of(options)));
  });
  if (options.context.threads != 0) say("--threads", std::to_string(options.context.threads));
  return command;
}

void run(const std::vector<std::string>& command) {
  const Outcome outcome = headgate(command);
  if (outcome.status != 0 || !outcome.out.empty() || !outcome.err.empty()) {
    throw std::runtime_error(fmt::format("status {}: {}{}", outcome.status, outcome.out, outcome.err));
  }
}

}  // namespace

void write_npy(const std::string& path, const ConstTensorView& view, std::size_t rank, Order order) {
  const DType dtype = view.dtype == DType::bf16 ? DType::f32 : view.dtype;
  const std::vector<std::int64_t> shape(view.shape.end() - static_cast<std::ptrdiff_t>(rank), view.shape.end());
  std::string header = io::npy_header(dtype, shape);
  if (order == Order::fortran) header.replace(header.find("False,"), 6, "True, ");
  io::Array array = io::make_array(dtype, shape);
  std::byte* to = array.data.get();
  for_each_index(view.shape, order, [&](const Shape& index) {
    const std::int64_t from = at(view, index);
    if (view.dtype == DType::bf16) {
      store_element(to, dtype, 0, load_element(view.data, view.dtype, from));
    } else {
      const auto bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
      const auto* element = static_cast<const std::byte*>(view.data) + from * bytes;
      std::copy(element, element + bytes, to);
    }
    to += dtype_bytes(dtype);
  });
  write_bytes(path, header + std::string(reinterpret_cast<const char*>(array.data.get()), array.bytes()));
}

void read_npy_into(const std::string& path, const TensorView& view) {
  const io::Array array = io::read_npy(path);
  if (array.numel() != view.numel()) {
    throw std::runtime_error(fmt::format("{} holds {} elements, not {}", path, array.numel(), view.numel()));
  }
  const DType written = view.dtype == DType::bf16 ? DType::f32 : view.dtype;
  if (array.dtype != written) throw std::runtime_error(path + " holds " + dtype_name(array.dtype));
  std::int64_t n = 0;
  for_each_index(view.shape, Order::c, [&](const Shape& index) {
    store_element(view.data, view.dtype, at(view, index), load_element(array.data.get(), array.dtype, n++));
  });
}

verify::Kernels kernels_by_command(const std::string& directory, Order order) {
  verify::Kernels kernels;
  kernels.computes_lse_alone = false;  // the command writes y
  kernels.forward = [=](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& options) {
    std::vector<std::string> command = command_of(in, options, directory, order);
    const auto ask = [&](const std::string& option, const TensorView& view, const std::string& name) {
      if (view.present()) command.insert(command.end(), {option, directory + "/" + name});
    };
    ask("--lse", out.lse, "lse.npy");
    ask("--weights", out.weights, "weights.npy");
    ask("--max-logit", out.max_logit, "max_logit.npy");
    run(command);
    read_npy_into(directory + "/y.npy", out.y);
    if (out.lse.present()) read_npy_into(directory + "/lse.npy", out.lse);
    if (out.weights.present()) read_npy_into(directory + "/weights.npy", out.weights);
    if (out.max_logit.present()) read_npy_into(directory + "/max_logit.npy", out.max_logit);
  };
  kernels.backward = [=](const AttentionGradients& out, const AttentionInputs& in, const AttentionSaved&,
                         const AttentionIncoming& incoming, const AttentionOptions& options) {
    std::vector<std::string> command = command_of(in, options, directory, order);
    const std::string dy = directory + "/dy.npy";
    write_npy(dy, incoming.dy, rank_of(in), order);
    const std::string gradients = directory + "/gradients";
    command.insert(command.end(), {"--grad-out", dy, "--grad-dir", gradients});
    run(command);
    const auto take = [&gradients](const std::string& name, const TensorView& view) {
      if (view.present()) read_npy_into(gradients + "/" + name + ".npy", view);
    };
    take("dq", out.dq);
    take("dk", out.dk);
    take("dv", out.dv);
    take("dz", out.dgate);
    take("dbias", out.dbias);
    take("dsinks", out.dsinks);
  };
  kernels.statistics = [=](const AttentionStatistics& out, const AttentionInputs& in, const ConstTensorView&,
                           const StatisticsSelection& selection, const AttentionOptions& options) {
    std::vector<std::string> command = command_of(in, options, directory, order);
    const std::string files = directory + "/statistics";
    command.insert(command.end(), {"--stats", files, "--window-share", std::to_string(selection.window)});
    if (out.topk_index.present()) command.insert(command.end(), {"--top-k", std::to_string(out.topk_index.shape[3])});
    std::string rows;
    for (std::int64_t n = 0; n < selection.queries.shape[3]; ++n) {
      rows += fmt::format("{}{}", n == 0 ? "" : ",", load_index(selection.queries, n));
    }
    if (!rows.empty()) command.insert(command.end(), {"--rows", rows});
    run(command);
    for (const StatisticsOutput& output : kStatisticsOutputs) {
      const TensorView& to = out.*output.member;
      if (!to.present() || to.numel() == 0) continue;
      const std::string path = files + "/" + output.name + ".npy";
      if (output.is_index()) {
        const io::Array array = io::read_npy(path);
        std::copy_n(array.data.get(), array.bytes(), static_cast<std::byte*>(to.data));
      } else {
        read_npy_into(path, to);
      }
    }
  };
  return kernels;
}

}  // namespace headgate::testing

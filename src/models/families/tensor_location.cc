// SPDX-License-Identifier: Apache-2.0
#include "models/families/tensor_location.hpp"

#include <fmt/format.h>

#include <charconv>
#include <numeric>
#include <system_error>
#include <utility>

namespace headgate::models {
namespace {

constexpr std::string_view kQProjection = "self_attn.q_proj.weight";
constexpr std::string_view kGateProjection = "self_attn.gate_proj.weight";

/// Locates the rows of q, or of the gate if `gate` is true, in a tensor that holds both.
TensorLocation fused_with_q(const Parameter& parameter, const FileConfig& file, const std::string& tensor, bool gate) {
  FusedRows rows = fused_rows(file.layout, file.config);
  TensorPiece piece{tensor, parameter.shape, gate ? std::move(rows.gate) : std::move(rows.q)};
  piece.shape[0] = q_projection_rows(file.layout, file.config);
  return {{std::move(piece)}, {}, StoredForm::plain};
}

/// Locates the weights of a layer's experts in a directory: one fused tensor, or separate tensors for each expert.
TensorLocation expert_tensors(const std::string& prefix, std::string_view rest, const DecoderConfig& config,
                              const ShapeOf& shape_of) {
  const Experts& e = config.experts;
  const bool down = rest == "mlp.experts.down_proj";
  const std::string fused = prefix + std::string(rest);
  TensorLocation out;
  if (shape_of(fused) != nullptr) {
    const std::vector<std::int64_t> shape =
        down ? std::vector{e.count, config.dim, e.ffn} : std::vector{e.count, 2 * e.ffn, config.dim};
    out.pieces.push_back({fused, shape, {}});
    return out;
  }
  for (std::int64_t i = 0; i < e.count; ++i) {
    const std::string name = fmt::format("{}mlp.experts.{}.", prefix, i);
    if (down) {
      out.pieces.push_back({name + "down_proj.weight", {config.dim, e.ffn}, {}});
    } else {
      out.pieces.push_back({name + "gate_proj.weight", {e.ffn, config.dim}, {}});
      out.pieces.push_back({name + "up_proj.weight", {e.ffn, config.dim}, {}});
    }
  }
  return out;
}

}  // namespace

std::vector<std::int64_t> row_range(std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

TensorLocation whole_tensor(const Parameter& parameter, const std::string& name) {
  return {{{name, parameter.shape, {}}}, {}, StoredForm::plain};
}

bool split_layer_name(std::string_view name, std::string_view& layer, std::string_view& rest) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  layer = name.substr(0, name.find('.'));
  rest = name.substr(layer.size() + 1);
  return true;
}

bool is_of_further_layer(std::string_view name, std::string_view prefix, const FileConfig& file) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  std::int64_t layer = 0;
  if (std::from_chars(name.data(), name.data() + name.size(), layer).ec != std::errc{}) return false;
  return layer >= file.config.layers && layer - file.config.layers < file.further_layers;
}

TensorLocation interleaved_experts(const DecoderConfig& config, const std::string& gate, const std::string& up) {
  const Experts& e = config.experts;
  const std::vector<std::int64_t> shape{e.count, e.ffn, config.dim};
  TensorLocation out;
  for (std::int64_t i = 0; i < e.count; ++i) {
    for (const std::string& tensor : {gate, up}) out.pieces.push_back({tensor, shape, {}, i * e.ffn, e.ffn});
  }
  return out;
}

TensorLocation alternating_experts(std::int64_t count, std::int64_t rows, const std::string& tensor,
                                   const std::vector<std::int64_t>& shape) {
  TensorLocation out;
  for (std::int64_t i = 0; i < count; ++i) {
    for (const std::int64_t first : {0, 1}) out.pieces.push_back({tensor, shape, {}, 2 * i * rows + first, rows, 2});
  }
  return out;
}

TensorLocation stored_in_directory(const Parameter& parameter, const FileConfig& file, const ShapeOf& shape_of) {
  std::string_view layer, rest;
  if (!split_layer_name(parameter.name, layer, rest)) {
    constexpr std::string_view kModel = "model.";
    std::string name = parameter.name;
    if (name.starts_with(kModel)) name.replace(0, kModel.size(), file.prefix);
    if (name == "lm_head.weight") name = file.head;
    return whole_tensor(parameter, name);
  }
  const std::string prefix = fmt::format("{}layers.{}.", file.prefix, layer);
  std::string theirs = prefix + std::string(rest);
  if (file.family != nullptr) {
    const LayerConfig of_layer = layer_config(file.config, std::stoll(std::string(layer)));
    for (const TensorRename& rename : file.family->renames) {
      if (rest == rename.ours) theirs = prefix + std::string(rename.theirs);
    }
    TensorLocation own;
    if (file.family->locate != nullptr && file.family->locate(own, parameter, rest, prefix, file, of_layer, shape_of)) {
      return own;
    }
  }
  if (rest.starts_with("mlp.experts.")) {
    const bool ours = file.family == &kHeadgate || file.family == nullptr;
    return ours ? whole_tensor(parameter, theirs) : expert_tensors(prefix, rest, file.config, shape_of);
  }
  if (file.layout == GateLayout::separate) return whole_tensor(parameter, theirs);
  if (rest == kQProjection) return fused_with_q(parameter, file, theirs, false);
  if (rest == kGateProjection) return fused_with_q(parameter, file, prefix + std::string(kQProjection), true);
  return whole_tensor(parameter, theirs);
}

}  // namespace headgate::models

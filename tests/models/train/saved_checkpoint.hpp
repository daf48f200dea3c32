// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/families/saved_model.hpp"
#include "models/train/checkpoint.hpp"

namespace headgate::testing {

/// Holds the content of a checkpoint of a SavedModel.
struct SavedCheckpoint : SavedModel {
  using SavedModel::SavedModel;

  void fill(float value) {
    for (auto* buffer : {&parameters, &first, &second}) buffer->assign(buffer->size(), value);
    state = std::to_string(value);
  }

  train::CheckpointView view() const { return {config, table, parameters.data(), first.data(), second.data(), state}; }

  std::string state = "{\"step\": 1}";
};

}  // namespace headgate::testing

// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

#include "headgate/error.hpp"
#include "io/input_file.hpp"
#include "io/staged_directory.hpp"
#include "io/staged_file.hpp"
#include "models/config_file.hpp"
#include "models/modeling_code.hpp"
#include "models/tensor_file.hpp"
#include "train/settings.hpp"

namespace headgate::train {
namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "trainer_state.json";
constexpr const char* kFirst = ".first_moment";
constexpr const char* kSecond = ".second_moment";
constexpr std::size_t kMaxState = std::size_t{1} << 24;
const std::vector<std::string> kFiles = {kConfig, models::kModelingFile, kModel, kOptimizer, kState};

std::string file_of(const std::string& directory, const char* name) { return directory + "/" + name; }

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

void save_checkpoint(const std::string& directory, const CheckpointView& checkpoint) {
  io::StagedDirectory staged(directory, kFiles);
  models::write_config_files(staged.path(), models::write_config(checkpoint.config));
  models::write_tensors(file_of(staged.path(), kModel), checkpoint.table, {{"", checkpoint.parameters}});
  if (checkpoint.first_moment != nullptr && checkpoint.second_moment != nullptr) {
    models::write_tensors(file_of(staged.path(), kOptimizer), checkpoint.table,
                          {{kFirst, checkpoint.first_moment}, {kSecond, checkpoint.second_moment}});
  }
  if (!checkpoint.trainer_state.empty()) io::write_text(file_of(staged.path(), kState), checkpoint.trainer_state);
  staged.commit();
}

const std::vector<std::string>& checkpoint_files() { return kFiles; }

bool is_checkpoint(const std::string& directory) { return exists(file_of(io::present_directory(directory), kConfig)); }

bool is_training_checkpoint(const std::string& directory) {
  return is_checkpoint(directory) && exists(file_of(io::present_directory(directory), kState));
}

void check_checkpoint_replaceable(const std::string& directory) { io::check_replaceable(directory, kFiles); }

std::int64_t checkpoint_step(const std::string& directory) {
  const std::string path = file_of(io::present_directory(directory), kState);
  try {
    return read_state(io::read_text(path, kMaxState)).step;
  } catch (const Error& error) {
    io::fail(path, "{}", error.what());
  }
}

std::string read_trainer_state(const std::string& directory) {
  const std::string path = file_of(io::present_directory(directory), kState);
  if (!exists(path)) return "";
  std::string state = io::read_text(path, kMaxState);
  if (state.empty()) io::fail(path, "is empty");
  return state;
}

Checkpoint load_checkpoint(const std::string& directory, CheckpointParts parts) {
  const std::string from = io::present_directory(directory);
  const std::string config_path = file_of(from, kConfig);
  Checkpoint out;
  out.config = models::read_config(config_path);
  const models::ParameterTable table(out.config);
  out.parameters =
      std::move(models::read_tensors(file_of(from, kModel), table, {""}, models::StoredAs::any_float).front());
  const std::string state_path = file_of(from, kState);
  if (parts == CheckpointParts::all) {
    auto moments = models::read_tensors(file_of(from, kOptimizer), table, {kFirst, kSecond}, models::StoredAs::f32);
    out.first_moment = std::move(moments[0]);
    out.second_moment = std::move(moments[1]);
  }
  if (parts == CheckpointParts::all || exists(state_path)) out.trainer_state = io::read_text(state_path, kMaxState);
  return out;
}

}  // namespace headgate::train

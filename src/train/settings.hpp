// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/data.hpp"
#include "train/schedule.hpp"

namespace headgate::train {

/// All that decides what a run computes, beside the model's config.
struct TrainSettings {
  std::vector<std::string> paths;
  std::vector<std::string> include;  ///< patterns of files below the paths that are directories (FileChoice)
  Task task = Task::text;
  std::int64_t seq_len = 256;
  std::int64_t batch = 8;       ///< sequences of one forward and backward pass
  std::int64_t accumulate = 1;  ///< passes of one step
  Schedule schedule;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip = 1.0;             ///< largest gradient norm; 0: no limit
  std::uint64_t seed = 1;        ///< of the initial parameters and of the data's order
  std::int64_t eval_every = 0;   ///< steps; 0: never
  std::int64_t eval_tokens = 0;  ///< held-out tokens of an evaluation, at most (but one batch at least)
  std::int64_t save_every = 0;   ///< steps; 0: at the end only
  int threads = 1;

  std::int64_t tokens_per_step() const { return seq_len * batch * accumulate; }
};

/// Throws Error naming the setting and its value.
void validate(const TrainSettings& settings);

/// The data of a run that is, or will be, in the directory `run`.
DataOptions data_of(const TrainSettings& settings, const std::string& run);

/// Where a run stands. With parameters and moments it is all that a run needs to go on as if never interrupted: data
/// is drawn by index.
struct TrainerState {
  TrainSettings settings;
  std::int64_t step = 0;  ///< steps done
  std::uint64_t data_fingerprint = 0;
  std::int64_t spikes = 0;
  bool inside_spike = false;
  std::vector<double> recent_losses;
};

/// JSON text; numbers come back with the same bits.
std::string write_state(const TrainerState& state);
/// Throws Error naming the key. The text is hostile; what comes back is valid.
TrainerState read_state(const std::string& text);

}  // namespace headgate::train

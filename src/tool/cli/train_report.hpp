// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/train/loop.hpp"
#include "models/train/start.hpp"

// Prints what `headgate train` reports at the start and at the end of a run.
// `out`: directory of the run as given on the command line.

namespace headgate::cli {

void print_start(const train::Run& run);
/// Prints that all steps of the run are already done.
void print_nothing_to_do(const train::Trainer& trainer);
/// Prints the final line of a completed run. `loss`: text of the last step's loss, empty if no step was taken.
void print_end(const train::Run& run, double seconds, const std::string& loss);

// Each function below prints a message and returns the exit status of `headgate train`.

/// Reports that the run ended before its last step because of the signal `signal_number`.
/// If signal_number is 0, reports that --stop-at ended the run.
int report_stop(const train::Trainer& trainer, const std::string& out, int signal_number);
int report_divergence(const train::Diverged& error, const train::Run& run);
/// Reports that other processes of the run have ended.
/// Returns the exit status 128 + N, where N is the signal that ended this process's training.
int report_lost_group(const train::GroupLost& error, const train::Run& run, const std::string& out);
/// Reports that the last checkpoint or some lines of metrics.jsonl could not be written.
int report_loss(const train::Run& run, const std::string& out, const train::LoopEnd& end);

}  // namespace headgate::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/train/loop.hpp"
#include "models/train/start.hpp"

// Prints what `headgate train` says at the start and at the end of a run. `out` is the run's directory, as it was
// given.

namespace headgate::cli {

void print_start(const train::Run& run);
/// `loss`: loss_text of the last step.
/// Says that a run has all its steps.
void print_nothing_to_do(const train::Trainer& trainer);
void print_end(const train::Run& run, double seconds, const std::string& loss);

// Each returns the verb's exit status.

/// Reports that the run ended early: by signal_number or, if that is 0, by --stop-at.
int report_stop(const train::Trainer& trainer, const std::string& out, int signal_number);
int report_divergence(const train::Diverged& error, const train::Run& run);
/// Reports that other processes of the run have ended, and that a signal told this one to end.
int report_lost_group(const train::GroupLost& error, const train::Run& run, const std::string& out);
/// Reports that the last checkpoint, or lines of metrics.jsonl, could not be written.
int report_loss(const train::Run& run, const std::string& out, const train::LoopEnd& end);

}  // namespace headgate::cli

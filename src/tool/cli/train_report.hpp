// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/train/loop.hpp"
#include "models/train/start.hpp"

// Prints the messages of `headgate train` at the start and at the end of a run. `out` is the run's directory, as the
// user gave it.

namespace headgate::cli {

void print_start(const train::Run& run);
/// Prints that the run has already done all its steps.
void print_nothing_to_do(const train::Trainer& trainer);
/// Prints the line of a finished run. `loss`: loss_text() of the last step.
void print_end(const train::Run& run, double seconds, const std::string& loss);

// Each of the following functions returns the exit status of the verb.

/// Reports that the run ended early, because of signal_number or, if it is 0, because of --stop-at.
int report_stop(const train::Trainer& trainer, const std::string& out, int signal_number);
int report_divergence(const train::Diverged& error, const train::Run& run);
/// Reports that other processes of the run have ended, and that a signal ends this process.
int report_lost_group(const train::GroupLost& error, const train::Run& run, const std::string& out);
/// Reports that the last checkpoint, or lines of metrics.jsonl, could not be written.
int report_loss(const train::Run& run, const std::string& out, const train::LoopEnd& end);

}  // namespace headgate::cli

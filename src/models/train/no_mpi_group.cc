// SPDX-License-Identifier: Apache-2.0
// Replaces mpi_group.cc in a build without MPI.

#include "library/core/check.hpp"
#include "models/train/process_group.hpp"

namespace headgate::train {

std::unique_ptr<ProcessGroup> launched_group(std::function<bool()> /*signalled*/) {
  const int processes = launched_processes();
  require(processes == 1,
          "a launcher started {} processes, but this build has no MPI, so that each would train the whole run: build "
          "with -DHEADGATE_MPI=ON",
          processes);
  return nullptr;
}

}  // namespace headgate::train

// SPDX-License-Identifier: Apache-2.0
// Implements groups of processes with MPI.

// Excludes MPI's C++ bindings, which are no longer part of the standard.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "library/core/check.hpp"
#include "models/train/process_group.hpp"

namespace headgate::train {

namespace {

class MpiGroup : public ProcessGroup {
 public:
  explicit MpiGroup(std::function<bool()> signalled) : signalled_(std::move(signalled)) {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;
  ~MpiGroup() override {
    if (!lost_) MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  /// Sums x over the processes. Each process adds up one slice of x: it receives the slice from all processes, adds in
  /// the order of the ranks, and sends the sum to all.
  void sum(float* x, std::int64_t n) override {
    for (std::int64_t first = 0; first < n; first += kPiece) sum_piece(x + first, std::min(kPiece, n - first));
  }

  std::vector<double> gather(double x) override {
    std::vector<double> all(static_cast<std::size_t>(size_));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(&x, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, MPI_COMM_WORLD, &request);
    wait(request);
    return all;
  }

  [[noreturn]] void end_all(int status) override {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::abort();
  }

 private:
  /// Number of elements summed at a time. The slices that a process receives then take 16 MiB in total.
  static constexpr std::int64_t kPiece = std::int64_t{1} << 22;

  void sum_piece(float* x, std::int64_t n) {
    const auto ranks = static_cast<std::size_t>(size_);
    std::vector<int> counts(ranks), firsts(ranks);
    for (int r = 0; r < size_; ++r) {
      firsts[r] = static_cast<int>(n * r / size_);
      counts[r] = static_cast<int>(n * (r + 1) / size_) - firsts[r];
    }
    const int own = counts[rank_];
    std::vector<int> own_counts(ranks, own), own_firsts(ranks);
    for (int r = 0; r < size_; ++r) own_firsts[r] = r * own;
    slices_.resize(ranks * static_cast<std::size_t>(own));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ialltoallv(x, counts.data(), firsts.data(), MPI_FLOAT, slices_.data(), own_counts.data(), own_firsts.data(),
                   MPI_FLOAT, MPI_COMM_WORLD, &request);
    wait(request);
    float* total = x + firsts[rank_];
    std::copy_n(slices_.begin(), own, total);
    for (int r = 1; r < size_; ++r) {
      const float* slice = slices_.data() + own_firsts[r];
      for (int i = 0; i < own; ++i) total[i] += slice[i];
    }
    MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, counts.data(), firsts.data(), MPI_FLOAT, MPI_COMM_WORLD,
                    &request);
    wait(request);
  }

  void wait(MPI_Request& request) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kToLive(
        300);  // shorter than the one second that mpirun waits between SIGTERM and SIGKILL
    constexpr std::chrono::microseconds kNap(50);
    constexpr int kTriesAwake = 2000;
    Clock::time_point told{};
    for (int tries = 0;; ++tries) {
      int done = 0;
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return;
      if (tries < kTriesAwake) continue;
      std::this_thread::sleep_for(kNap);
      if (!signalled_()) continue;
      if (told == Clock::time_point{}) told = Clock::now();
      if (Clock::now() - told < kToLive) continue;
      lost_ = true;
      throw GroupLost("other processes of the run do not answer any more");
    }
  }

  std::function<bool()> signalled_;
  int rank_ = 0, size_ = 1;
  bool lost_ = false;
  std::vector<float> slices_;  // from each process, the slice of x that this process sums
};

}  // namespace

std::unique_ptr<ProcessGroup> launched_group(std::function<bool()> signalled) {
  if (launched_processes() == 1) return nullptr;
  return std::make_unique<MpiGroup>(std::move(signalled));
}

}  // namespace headgate::train

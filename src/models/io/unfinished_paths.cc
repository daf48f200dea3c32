// SPDX-License-Identifier: Apache-2.0
#include "models/io/unfinished_paths.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <utility>

namespace headgate::io {
namespace {

// State of a slot, which stores one path. A signal handler may call remove_unfinished_files() in any thread at any
// time. Slots therefore change their state only by lock-free atomics. A thread that sets the state to `writing` or
// `removing` owns the slot's path until it changes the state again. Other threads must not access the path.
enum class SlotState { empty, writing, file, directory, removing };

struct Slot {
  std::atomic<SlotState> state{SlotState::empty};
  std::array<char, PATH_MAX> path{};
};

constexpr int kSlots = 64;
std::array<Slot, kSlots> g_slots{};
static_assert(std::atomic<SlotState>::is_always_lock_free);

SlotState named(PathKind kind) { return kind == PathKind::file ? SlotState::file : SlotState::directory; }

/// Changes a slot's state to `to` if it is `from`. Returns false if the slot has another state.
bool change_state(Slot& slot, SlotState from, SlotState to) { return slot.state.compare_exchange_strong(from, to); }

/// Stores a path in an empty slot and returns the slot's index. Returns −1 if the path is too long or all slots are in
/// use.
int take_slot(const std::string& path, PathKind kind) {
  if (path.size() >= PATH_MAX) return -1;
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = g_slots[i];
    if (!change_state(slot, SlotState::empty, SlotState::writing)) continue;
    std::memcpy(slot.path.data(), path.c_str(), path.size() + 1);
    slot.state.store(named(kind));
    return i;
  }
  return -1;
}

void remove_all(PathKind kind) noexcept {
  for (Slot& slot : g_slots) {
    if (!change_state(slot, named(kind), SlotState::removing)) continue;
    if (kind == PathKind::file) {
      ::unlink(slot.path.data());
    } else {
      ::rmdir(slot.path.data());
    }
    slot.state.store(SlotState::empty);
  }
}

}  // namespace

void remove_unfinished_files() noexcept {
  remove_all(PathKind::file);
  remove_all(PathKind::directory);
}

UnfinishedPath::UnfinishedPath(const std::string& path, PathKind kind) : slot_(take_slot(path, kind)) {}

UnfinishedPath::UnfinishedPath(UnfinishedPath&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

UnfinishedPath& UnfinishedPath::operator=(UnfinishedPath&& other) noexcept {
  if (this != &other) {
    forget();
    slot_ = std::exchange(other.slot_, -1);
  }
  return *this;
}

void UnfinishedPath::forget() {
  // Leaves a slot in the state `removing` to remove_unfinished_files(), which empties it.
  if (slot_ >= 0 && !change_state(g_slots[slot_], SlotState::file, SlotState::empty)) {
    change_state(g_slots[slot_], SlotState::directory, SlotState::empty);
  }
  slot_ = -1;
}

}  // namespace headgate::io

#pragma once

namespace tiledev {

// Whether threads can be bound to cores on this system.
bool can_pin();

// Binds the calling thread to one of the cores that the process may use: the n-th, counted round.
void pin_this_thread(int n);

// While it lives, a pinned thread may run on all cores of the process again: threads that an op
// starts inherit where their maker may run.
class Unpinned {
 public:
  explicit Unpinned(bool pinned, int n);
  ~Unpinned();
  Unpinned(const Unpinned&) = delete;
  Unpinned& operator=(const Unpinned&) = delete;

 private:
  bool pinned_;
  int n_;
};

}  // namespace tiledev

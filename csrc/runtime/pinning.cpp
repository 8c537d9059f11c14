#include "runtime/pinning.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace tiledev {

#ifdef __linux__

namespace {

// The cores of the process, as they were when the first worker asked.
const cpu_set_t& process_cores() {
  static const cpu_set_t cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  return cores;
}

}  // namespace

bool can_pin() {
  return CPU_COUNT(&process_cores()) > 0;
}

void pin_this_thread(int n) {
  const cpu_set_t& cores = process_cores();
  int left = n % CPU_COUNT(&cores);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores) && left-- == 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      return;
    }
  }
}

Unpinned::Unpinned(bool pinned, int n) : pinned_(pinned), n_(n) {
  if (pinned_) {
    pthread_setaffinity_np(pthread_self(), sizeof(cpu_set_t), &process_cores());
  }
}

#else

bool can_pin() {
  return false;
}

void pin_this_thread(int) {}

Unpinned::Unpinned(bool pinned, int n) : pinned_(pinned), n_(n) {}

#endif

Unpinned::~Unpinned() {
  if (pinned_) {
    pin_this_thread(n_);
  }
}

}  // namespace tiledev

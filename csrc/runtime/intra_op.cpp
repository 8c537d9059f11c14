#include "runtime/intra_op.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace tiledev {

namespace {

using SetThreads = void (*)(int);

// Looked up in the libraries that torch has loaded already: linking OpenMP or MKL here could bring
// a second copy of them into the process.
struct ThreadSetters {
  SetThreads omp = nullptr;
  SetThreads mkl = nullptr;

  ThreadSetters() {
#ifdef __APPLE__
    constexpr const char* kLibrary = "libtorch_cpu.dylib";
#else
    constexpr const char* kLibrary = "libtorch_cpu.so";
#endif
    void* library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) {
      library = RTLD_DEFAULT;
    }
    omp = reinterpret_cast<SetThreads>(dlsym(library, "omp_set_num_threads"));
    mkl = reinterpret_cast<SetThreads>(dlsym(library, "MKL_Set_Num_Threads_Local"));
  }
};

}  // namespace

void set_intra_op_threads(int threads) {
  static const ThreadSetters setters;
  thread_local int current = 0;
  if (current == threads) {
    return;
  }
  if (current == 0) {
    // Else torch's first parallel region in this thread resets the count. Not by the inline
    // lazy_init_num_threads(): torch's flag that it was done is not the one in this library.
    at::get_num_threads();
  }
  current = threads;
  if (setters.omp != nullptr) {
    setters.omp(threads);
  }
  if (setters.mkl != nullptr) {
    setters.mkl(threads);
  }
}

}  // namespace tiledev

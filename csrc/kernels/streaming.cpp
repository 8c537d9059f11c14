#include "kernels/streaming.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tiledev {

void stream_copy(const float* from, float* to, int64_t n) {
#if defined(__x86_64__)
  while (n > 0 && reinterpret_cast<uintptr_t>(to) % 16 != 0) {
    *to++ = *from++;
    --n;
  }
  for (; n >= 4; n -= 4, from += 4, to += 4) {
    _mm_stream_ps(to, _mm_loadu_ps(from));
  }
#endif
  for (; n > 0; --n) {
    *to++ = *from++;
  }
}

void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace tiledev

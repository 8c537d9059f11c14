// How failures of tasks reach the user.

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "record/bridge.h"
#include "record/memory_errors.h"
#include "record/session.h"

namespace tiledev {

namespace {

std::string describe(const RunError& error) {
  const std::string where = bridge().describe_location(error.location);
  return "[" + error.op + "] failed on tiledev" + (where.empty() ? "" : "; recorded at " + where);
}

// ATen's allocator for the CPU, which kernels use for what they return, says it in words alone:
// those words, or nothing if the error is another one.
std::string words_of_allocator(const c10::Error& error) {
  const size_t begin = error.msg().find("DefaultCPUAllocator: ");
  return begin == std::string::npos ? "" : error.msg().substr(begin);
}

std::exception_ptr out_of_memory(const std::string& why, BufferPool& buffers,
                                 const std::string& context) {
  buffers.counters().failures.fetch_add(1, std::memory_order_relaxed);
  OutOfMemory error("[tiledev] out of memory: " + why, buffers.largest());
  error.add_context(context);
  name_largest_buffers(error);
  return std::make_exception_ptr(error);
}

// Adds where it came from; the type of the exception stays, except that a failed allocation is
// always an OutOfMemoryError.
std::exception_ptr with_context(const std::exception_ptr& exception, BufferPool& buffers,
                                const std::string& context) {
  try {
    std::rethrow_exception(exception);
  } catch (OutOfMemory& e) {
    e.add_context(context);
    name_largest_buffers(e);
    return exception;
  } catch (c10::Error& e) {
    if (const std::string words = words_of_allocator(e); !words.empty()) {
      return out_of_memory(words, buffers, context);
    }
    e.add_context(context);
    return exception;
  } catch (const std::bad_alloc&) {
    return out_of_memory("the system has no more", buffers, context);
  } catch (std::exception& e) {
    if (auto noted = bridge().with_note(e, context)) {
      return noted;
    }
    return std::make_exception_ptr(
        c10::Error({__func__, __FILE__, __LINE__}, std::string(e.what()) + "\n" + context));
  }
}

}  // namespace

void Session::throw_error(const std::shared_ptr<RunError>& error,
                          const std::vector<std::shared_ptr<RunError>>& others) {
  error->reported.store(true, std::memory_order_release);
  if (!error->described.exchange(true)) {
    constexpr size_t kNamed = 5;
    std::string context = describe(*error);
    for (size_t i = 0; i < std::min(others.size(), kNamed); ++i) {
      context += "\nAlso: " + describe(*others[i]);
    }
    if (others.size() > kNamed) {
      context += "\nAlso: " + std::to_string(others.size() - kNamed) + " more ops";
    }
    error->exception = with_context(error->exception, buffers_, context);
  }
  std::rethrow_exception(error->exception);
}

}  // namespace tiledev

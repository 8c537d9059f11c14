// How failures of tasks reach the user.

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "record/bridge.h"
#include "record/session.h"

namespace tiledev {

namespace {

std::string describe(const RunError& error) {
  const std::string where = bridge().describe_location(error.location);
  return "[" + error.op + "] failed on tiledev" + (where.empty() ? "" : "; recorded at " + where);
}

// Adds where it came from; the type of the exception stays.
std::exception_ptr with_context(const std::exception_ptr& exception, const std::string& context) {
  try {
    std::rethrow_exception(exception);
  } catch (c10::Error& e) {
    e.add_context(context);
    return exception;
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(
        c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "out of memory; " + context));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(
        c10::Error({__func__, __FILE__, __LINE__}, std::string(e.what()) + "\n" + context));
  }
}

}  // namespace

void Session::throw_error(const std::shared_ptr<RunError>& error,
                          const std::vector<std::shared_ptr<RunError>>& others) {
  error->reported.store(true, std::memory_order_release);
  if (!error->described.exchange(true)) {
    std::string context = describe(*error);
    for (const auto& other : others) {
      context += "\nAlso: " + describe(*other);
    }
    error->exception = with_context(error->exception, context);
  }
  std::rethrow_exception(error->exception);
}

}  // namespace tiledev

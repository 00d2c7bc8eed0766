#pragma once

namespace mpips {

// Return the version of mpips of which this module was built, as mpips/__init__.py had it then.
const char* version() noexcept;

// Return the commit of the sources when this module was configured, with "-dirty" if they were
// changed since that commit; "" if git or the repository was not there.
const char* commit() noexcept;

}  // namespace mpips

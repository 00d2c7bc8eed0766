#include "queue/queue_watch.hpp"

#include <utility>

namespace mpips {

bool QueueWatch::look() {
  if (file_.is_open() && file_.is_at(path_)) return true;
  QueueFile found = QueueFile::open(path_);
  if (!found.is_open() || !found.is_sound()) return file_.is_open();
  if (file_.is_open()) ++replacements_;
  file_ = std::move(found);
  return true;
}

bool QueueWatch::close_producer() noexcept {
  if (!file_.is_open() || !file_.lock(program_byte)) return false;
  store_release(&file_.header()->closed, std::uint64_t{1});
  file_.unlock(program_byte);
  file_.touch();
  return true;
}

}  // namespace mpips

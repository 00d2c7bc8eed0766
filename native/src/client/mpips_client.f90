! Push samples of a simulation into a stream of mpips, from Fortran. Compile this file with the program, and
! link libmpips_client. Functions and codes are those of mpips.h.
!
! An array a(n1, n2) is the field of shape (n2, n1) of the stream: the first index is the fastest one in
! Fortran, and the last one in C and NumPy. So a(i, j) is x[j-1, i-1], and nothing is transposed.
module mpips_client
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: mpips_open, mpips_declare, mpips_push, mpips_try_push, mpips_flush, mpips_steer, mpips_produced, &
            mpips_close, mpips_detach, mpips_message

  integer, parameter, public :: mpips_ok = 0, mpips_full = 1, mpips_stalled = 2, mpips_invalid = 3, &
                                mpips_usage = 4, mpips_replaced = 5, mpips_system = 6
  integer, parameter, public :: mpips_float32 = 1, mpips_float64 = 2, mpips_int8 = 3, mpips_int16 = 4, &
                                mpips_int32 = 5, mpips_int64 = 6

  ! A producer of a stream, from mpips_open to mpips_close.
  type, public :: mpips_producer
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  interface
    function c_open(producer, name, number, timeout_s) bind(c, name="mpips_open") result(code)
      import
      type(c_ptr), intent(out) :: producer
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: number
      real(c_double), value :: timeout_s
      integer(c_int) :: code
    end function
    function c_declare(producer, field, type, n_dims, shape, strides) bind(c, name="mpips_declare") result(code)
      import
      type(c_ptr), value :: producer
      character(kind=c_char), intent(in) :: field(*)
      integer(c_int), value :: type, n_dims
      integer(c_int64_t), intent(in) :: shape(*), strides(*)
      integer(c_int) :: code
    end function
    function c_push(producer, arrays) bind(c, name="mpips_push") result(code)
      import
      type(c_ptr), value :: producer
      type(c_ptr), intent(in) :: arrays(*)
      integer(c_int) :: code
    end function
    function c_try_push(producer, arrays) bind(c, name="mpips_try_push") result(code)
      import
      type(c_ptr), value :: producer
      type(c_ptr), intent(in) :: arrays(*)
      integer(c_int) :: code
    end function
    function c_flush(producer) bind(c, name="mpips_flush") result(code)
      import
      type(c_ptr), value :: producer
      integer(c_int) :: code
    end function
    function c_steer(producer, values, n, version) bind(c, name="mpips_steer") result(code)
      import
      type(c_ptr), value :: producer
      real(c_float), intent(inout) :: values(*)
      integer(c_int64_t), value :: n
      integer(c_int64_t), intent(out) :: version
      integer(c_int) :: code
    end function
    function c_produced(producer) bind(c, name="mpips_produced") result(n)
      import
      type(c_ptr), value :: producer
      integer(c_int64_t) :: n
    end function
    function c_close(producer) bind(c, name="mpips_close") result(code)
      import
      type(c_ptr), value :: producer
      integer(c_int) :: code
    end function
    function c_detach(producer) bind(c, name="mpips_detach") result(code)
      import
      type(c_ptr), value :: producer
      integer(c_int) :: code
    end function
    function c_message() bind(c, name="mpips_message") result(text)
      import
      type(c_ptr) :: text
    end function
    function c_strlen(text) bind(c, name="strlen") result(n)
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: n
    end function
  end interface

contains

  ! name: as in mpips.h, "" in place of NULL.
  subroutine mpips_open(producer, name, number, timeout_s, code)
    type(mpips_producer), intent(out) :: producer
    character(*), intent(in) :: name
    integer, intent(in) :: number
    real(c_double), intent(in) :: timeout_s
    integer, intent(out) :: code
    code = c_open(producer%handle, trim(name)//c_null_char, int(number, c_int), timeout_s)
  end subroutine

  ! sizes: those of the array in the order of Fortran. strides: for each dimension the number of values from
  ! one index to the next; without them the array is contiguous.
  subroutine mpips_declare(producer, field, type, sizes, strides, code)
    type(mpips_producer), intent(in) :: producer
    character(*), intent(in) :: field
    integer, intent(in) :: type, sizes(:)
    integer, intent(in), optional :: strides(:)
    integer, intent(out) :: code
    integer(c_int64_t) :: shape(size(sizes)), steps(size(sizes))
    integer :: i, n
    n = size(sizes)
    code = mpips_usage
    if (present(strides)) then
      if (size(strides) /= n) return
    end if
    do i = 1, n
      shape(n + 1 - i) = sizes(i)
      steps(n + 1 - i) = product(int(sizes(:i - 1), c_int64_t))
      if (present(strides)) steps(n + 1 - i) = strides(i)
    end do
    code = c_declare(producer%handle, trim(field)//c_null_char, int(type, c_int), int(n, c_int), shape, steps)
  end subroutine

  ! arrays: c_loc of the first value of each declared field.
  subroutine mpips_push(producer, arrays, code)
    type(mpips_producer), intent(in) :: producer
    type(c_ptr), intent(in) :: arrays(:)
    integer, intent(out) :: code
    code = c_push(producer%handle, arrays)
  end subroutine

  subroutine mpips_try_push(producer, arrays, code)
    type(mpips_producer), intent(in) :: producer
    type(c_ptr), intent(in) :: arrays(:)
    integer, intent(out) :: code
    code = c_try_push(producer%handle, arrays)
  end subroutine

  subroutine mpips_flush(producer, code)
    type(mpips_producer), intent(in) :: producer
    integer, intent(out) :: code
    code = c_flush(producer%handle)
  end subroutine

  subroutine mpips_steer(producer, values, version, code)
    type(mpips_producer), intent(in) :: producer
    real(c_float), intent(inout), contiguous :: values(:)
    integer(c_int64_t), intent(out) :: version
    integer, intent(out) :: code
    code = c_steer(producer%handle, values, size(values, kind=c_int64_t), version)
  end subroutine

  function mpips_produced(producer) result(n)
    type(mpips_producer), intent(in) :: producer
    integer(c_int64_t) :: n
    n = c_produced(producer%handle)
  end function

  subroutine mpips_close(producer, code)
    type(mpips_producer), intent(inout) :: producer
    integer, intent(out) :: code
    code = c_close(producer%handle)
    producer%handle = c_null_ptr
  end subroutine

  subroutine mpips_detach(producer, code)
    type(mpips_producer), intent(inout) :: producer
    integer, intent(out) :: code
    code = c_detach(producer%handle)
    producer%handle = c_null_ptr
  end subroutine

  ! Sentence about the last error.
  function mpips_message() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: bytes(:)
    type(c_ptr) :: at
    integer :: i, n
    at = c_message()
    n = int(c_strlen(at))
    call c_f_pointer(at, bytes, [n])
    allocate (character(n) :: text)
    do i = 1, n
      text(i:i) = bytes(i)
    end do
  end function

end module
